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
WORKER = str(WORKERS / "horovod_numbers.py")
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def numbers(command: list[str], environment: dict[str, str]) -> list[str]:
    """The lines with digests that both ranks print, in order."""
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    # mpirun may put two into one line.
    lines = re.findall(r"NUMBER .*? [0-9a-f]{16}", done.stdout)
    assert len(lines) > 180
    return sorted(lines)


def ours() -> list[str]:
    command = [sys.executable, "-m", "mydist.launcher", "--horovod", "-np", "2"]
    return numbers([*command, sys.executable, WORKER], {**os.environ, **job_environment()})


@pytest.mark.turns(2)
def test_ranks_of_an_unedited_program_agree() -> None:
    """What every rank gets has one digest."""
    shared = ("0 ", "1 ", "allreduce (", "broadcast (", "sgd", "adam", "adasum", "sparse")
    by_label: dict[str, set[str]] = {}
    for line in ours():
        _, _, text = line.split(" ", 2)
        if text.startswith(shared) and "gradient" not in text:
            by_label.setdefault(text.rsplit(" ", 1)[0], set()).add(text.rsplit(" ", 1)[1])
    assert len(by_label) > 60
    assert all(len(digests) == 1 for digests in by_label.values()), by_label


@pytest.mark.deep
@pytest.mark.skipif(not PUBLISHED, reason="MYDIST_HOROVOD_PYTHON names no Python with horovod")
def test_the_published_package_gives_the_same_bits() -> None:
    command = ["mpirun", "--oversubscribe", "-np", "2", PUBLISHED, WORKER]
    assert numbers(command, {**os.environ, **_AS_ROOT}) == ours()
