"""get_logger on one rank: prefix, levels and where a record says it comes from."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import mydist as md


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.mark.usefixtures("job")
def test_records_with_the_rank_in_front(caplog: pytest.LogCaptureFixture) -> None:
    log = md.get_logger("training")
    with caplog.at_level(logging.INFO):
        log.info("loss %.2f, %d%%", 0.25, 50)
        log.debug("not asked for")
    assert said(caplog) == ["[rank 0/1] loss 0.25, 50%"]
    assert caplog.records[0].name == "training"
    assert caplog.records[0].filename == "test_rank_logger.py"


@pytest.mark.usefixtures("job")
def test_exceptions_and_levels_are_loggings_own(caplog: pytest.LogCaptureFixture) -> None:
    log = md.get_logger("training", all_ranks=True)
    log.setLevel(logging.ERROR)
    try:
        raise KeyError("x")
    except KeyError:
        log.exception("failed")
    log.warning("not shown")
    assert said(caplog) == ["[rank 0/1] failed"]
    assert caplog.records[0].exc_info is not None
    logging.getLogger("training").setLevel(logging.NOTSET)


@pytest.mark.usefixtures("no_job")
def test_can_be_made_and_used_before_init(caplog: pytest.LogCaptureFixture) -> None:
    log = md.get_logger()
    log.warning("early")
    md.init()
    log.warning("in the job")
    md.shutdown()
    log.warning("late")
    assert said(caplog) == ["early", "[rank 0/1] in the job", "late"]


def test_leaves_the_named_logger_alone(caplog: pytest.LogCaptureFixture) -> None:
    md.get_logger("shared")
    plain = logging.getLogger("shared")
    assert plain.filters == [] and plain.handlers == []
    plain.warning("plain")
    assert said(caplog) == ["plain"]


@pytest.mark.parametrize("name", [3, b"training", logging.getLogger("x")])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(TypeError, match=r"get_logger: name is .*, expected a str or None"):
        md.get_logger(name)
