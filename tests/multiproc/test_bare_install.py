"""A job of one host with neither MPI nor Gloo: the installation without its plugins."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deep import deep

import mydist
import mydist.launcher
from multiproc.job import WORKERS, job_environment, launcher_command, run
from multiproc.test_starts import expect_ranks

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

HELLO = str(WORKERS / "hello.py")
TRAIN = str(WORKERS / "small_memory.py")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a copy of mydist that has the core library only."""
    root = tmp_path_factory.mktemp("bare")
    unwanted = shutil.ignore_patterns("libmydist_*", "__pycache__", "launcher")
    shutil.copytree(Path(mydist.__file__).parent, root / "mydist", ignore=unwanted)
    shutil.copytree(Path(mydist.launcher.__file__).parent, root / "mydist" / "launcher")
    return {"PYTHONPATH": os.pathsep.join([str(root), job_environment()["PYTHONPATH"]])}


@pytest.mark.deep
def test_four_ranks_need_nothing_else(bare: dict[str, str]) -> None:
    outcome = run(launcher_command(4, "local", HELLO), timeout=90, env=bare).expect_success()
    expect_ranks(outcome.output, 4, "local")


@pytest.mark.parametrize("np", [2, deep(4)])
def test_ranks_train_as_with_all_plugins(bare: dict[str, str], np: int) -> None:
    def losses(env: dict[str, str]) -> list[float]:
        outcome = run(launcher_command(np, "local", TRAIN, "64", "6"), timeout=90, env=env)
        (report,) = re.findall(r"TRAINED (\{.*\})", outcome.expect_success().output)
        trained = json.loads(report)
        assert trained["backend"] == "local"
        found: list[float] = trained["losses"]
        return found

    trained = losses(bare)
    assert len(set(trained)) == 6  # They change with the parameters.
    assert trained == losses({})


def needed_libraries(path: Path) -> list[str]:
    """What the dynamic linker loads with this file."""
    done = subprocess.run(
        ["readelf", "--dynamic", "--wide", str(path)], capture_output=True, text=True, check=True
    )
    return re.findall(r"\(NEEDED\).*\[(.+)\]", done.stdout)


def test_only_the_plugins_need_other_libraries() -> None:
    package = Path(mydist.__file__).parent
    (extension,) = package.glob("_C*.so")
    core = package / "lib" / "libmydist.so"
    for file in (extension, core):
        needed = needed_libraries(file)
        assert any(name.startswith("libc.so") for name in needed), needed  # They are read at all.
        foreign = ("mpi", "gloo", "open-pal", "open-rte")
        assert not [name for name in needed if any(word in name for word in foreign)], needed
    assert "libmydist.so" in needed_libraries(extension)
    for plugin in package.glob("lib/libmydist_mpi.so"):
        assert any("libmpi" in name for name in needed_libraries(plugin))
    for preloaded in package.glob("lib/libmydist_mpirun.so"):  # Into a program written in C.
        assert all(name.startswith(("libc.", "libgcc_s.")) for name in needed_libraries(preloaded))


def test_the_report_says_what_is_there(bare: dict[str, str]) -> None:
    command = [sys.executable, "-m", "mydist.launcher", "--check-build"]
    output = run(command, timeout=60, env=bare).expect_success().output
    lines = output.partition("torch:")[0]
    marks = {
        line.split("]")[1].split()[0]: "[x]" in line for line in lines.splitlines() if "]" in line
    }
    assert marks == {"local": True, "mpi": False, "gloo": False, "nccl": False, "ps": False}
    assert re.search(r"ps +backend 'ps' cannot be loaded: .*libmydist_ps.so", lines), lines
    command = [sys.executable, "-c", "from mydist.ps.binding import load; load()"]
    output = run(command, timeout=60, env=bare).output
    assert "MydistError: the parameter server cannot be loaded: libmydist_ps.so: " in output


@pytest.mark.parametrize(
    ("backend", "more", "text"),
    [
        ("local", {"MYDIST_SHARED_MEMORY": "0"}, "Fix shared memory or install gloo"),
        deep("gloo", {}, "needs the gloo backend, which is not available"),
        deep("mpi", {}, "needs the mpi backend, which is not available"),
    ],
)
def test_what_is_missing_is_said(
    bare: dict[str, str], backend: str, more: dict[str, str], text: str
) -> None:
    outcome = run(launcher_command(2, backend, HELLO), timeout=90, env=bare | more)
    assert outcome.code != 0
    assert text in outcome.output, outcome.output
