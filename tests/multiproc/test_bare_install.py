"""A job of one host with neither MPI nor Gloo: the installation without its plugins."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

import mydist
import mydist.launcher
from multiproc.job import WORKERS, job_environment, launcher_command, run
from multiproc.test_starts import expect_ranks

HELLO = str(WORKERS / "hello.py")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a copy of mydist that has the core library only."""
    root = tmp_path_factory.mktemp("bare")
    unwanted = shutil.ignore_patterns("libmydist_*", "__pycache__", "launcher")
    shutil.copytree(Path(mydist.__file__).parent, root / "mydist", ignore=unwanted)
    shutil.copytree(Path(mydist.launcher.__file__).parent, root / "mydist" / "launcher")
    return {"PYTHONPATH": os.pathsep.join([str(root), job_environment()["PYTHONPATH"]])}


def test_four_ranks_need_nothing_else(bare: dict[str, str]) -> None:
    outcome = run(launcher_command(4, "local", HELLO), timeout=90, env=bare).expect_success()
    expect_ranks(outcome.output, 4, "local")


def test_the_report_says_what_is_there(bare: dict[str, str]) -> None:
    command = [sys.executable, "-m", "mydist.launcher", "--check-build"]
    lines = run(command, timeout=60, env=bare).expect_success().output.splitlines()
    marks = {line.split("]")[1].split()[0]: "[x]" in line for line in lines if "]" in line}
    assert marks == {"local": True, "mpi": False, "gloo": False, "nccl": False}


@pytest.mark.parametrize(
    ("backend", "more", "text"),
    [
        ("local", {"MYDIST_SHARED_MEMORY": "0"}, "Mend the one or install the other"),
        ("gloo", {}, "needs the gloo backend, which is not available"),
    ],
)
def test_what_is_missing_is_said(
    bare: dict[str, str], backend: str, more: dict[str, str], text: str
) -> None:
    outcome = run(launcher_command(2, backend, HELLO), timeout=90, env=bare | more)
    assert outcome.code != 0
    assert text in outcome.output, outcome.output
