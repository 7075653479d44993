"""What exceptions know as data, and which of them mydistrun is told of."""

from __future__ import annotations

import pytest

import mydist as md
from mydist.job import failure_report


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (md.MydistError, "INTERNAL"),
        (md.MismatchError, "MISMATCH"),
        (md.PeerLostError, "PEER_LOST"),
        (md.CollectiveTimeoutError, "TIMEOUT"),
        (md.AbortedError, "ABORTED"),
        (md.VersionMismatchError, "VERSION_MISMATCH"),
    ],
)
def test_every_error_has_a_record(kind: type[md.MydistError], code: str) -> None:
    failure = kind("raised in Python").failure
    assert failure["code"] == code
    assert failure["ranks"] == []
    assert set(failure) == {
        *("code", "operation", "tensor", "phase", "ranks"),
        *("host", "pid", "signal", "cause", "hint"),
    }


def test_an_exception_raised_from_a_loss_is_told_as_the_loss() -> None:
    loss = md.PeerLostError("rank 1 has died")
    wrapped = RuntimeError("training failed")
    wrapped.__cause__ = loss
    outer = ValueError("while cleaning up")
    outer.__context__ = wrapped
    assert failure_report._behind(outer) is loss
    own = KeyError("x")
    own.__context__ = own  # A circle ends.
    assert failure_report._behind(own) is own
