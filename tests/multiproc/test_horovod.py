"""`mydist.horovod` beside the published package, where a Python has that: the same bits.

Set MYDIST_HOROVOD_PYTHON to a Python with horovod 0.28.1 for the torch of this one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from multiproc.job import WORKERS, job_environment

PUBLISHED = os.environ.get("MYDIST_HOROVOD_PYTHON", "")
NUMBERS, ERRORS = (str(WORKERS / f"horovod_{what}.py") for what in ("numbers", "errors"))
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def lines_of(command: list[str], environment: dict[str, str], worker: str) -> list[str]:
    """What both ranks of the worker print, in order."""
    done = subprocess.run(
        [*command, worker], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    # mpirun may put two into one line.
    lines = re.findall(r"NUMBER .*? [0-9a-f]{16}|ANSWER .*? \.(?=ANSWER|\n)", done.stdout)
    assert len(lines) > (180 if worker == NUMBERS else 120)
    return sorted(lines)


def ours(worker: str) -> list[str]:
    command = [sys.executable, "-m", "mydist.launcher", "--horovod", "-np", "2", sys.executable]
    return lines_of(command, {**os.environ, **job_environment()}, worker)


@pytest.mark.turns(2)
def test_ranks_of_an_unedited_program_agree() -> None:
    """What every rank gets has one digest."""
    shared = ("0 ", "1 ", "allreduce (", "broadcast (", "sgd", "adam", "adasum", "sparse")
    by_label: dict[str, set[str]] = {}
    for line in ours(NUMBERS):
        _, _, text = line.split(" ", 2)
        if text.startswith(shared) and "gradient" not in text:
            by_label.setdefault(text.rsplit(" ", 1)[0], set()).add(text.rsplit(" ", 1)[1])
    assert len(by_label) > 60
    assert all(len(digests) == 1 for digests in by_label.values()), by_label


@pytest.mark.deep
@pytest.mark.skipif(not PUBLISHED, reason="MYDIST_HOROVOD_PYTHON names no Python with horovod")
@pytest.mark.parametrize("worker", [NUMBERS, ERRORS], ids=["bits", "errors"])
def test_the_published_package_gives_the_same(worker: str) -> None:
    command = ["mpirun", "--oversubscribe", "-np", "2", PUBLISHED]
    assert lines_of(command, {**os.environ, **_AS_ROOT}, worker) == ours(worker)
