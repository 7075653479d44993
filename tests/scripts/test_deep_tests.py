"""Which tests a run has: slices bring back all that is deep, and turns all that takes turns."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
MARKED = """
import pytest
from deep import deep

@pytest.mark.parametrize("case", [0, *(deep(n) for n in range(1, 41))])
def test_cases(case): ...

@pytest.mark.deep(group="together")
@pytest.mark.parametrize("part", range(5))
def test_parts(part): ...
"""
TAKING_TURNS = """
import pytest
from deep import deep

@pytest.mark.turns(2)
@pytest.mark.parametrize("case", [*range(7), deep(7)])
def test_cases(case): ...

def test_always(): ...
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("marked")
    for name in ("conftest.py", "deep.py"):
        shutil.copy(TESTS / name, folder)
    (folder / "test_marked.py").write_text(MARKED)
    return folder


def collected(folder: Path, *options: str) -> set[str]:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--rootdir={folder}", str(folder), *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(re.findall(r"test_\w+\[\d+\]", done.stdout))


def test_only_a_deep_run_has_all(folder: Path) -> None:
    assert collected(folder) == {"test_cases[0]"}
    assert len(collected(folder, "--deep")) == 46


def test_slices_are_disjoint_and_together_all(folder: Path) -> None:
    slices = [collected(folder, "--slice", f"{i}/4") - {"test_cases[0]"} for i in range(4)]
    assert sum(map(len, slices)) == 45
    assert len(set().union(*slices)) == 45
    assert {sum("parts" in name for name in piece) for piece in slices} == {0, 5}


def test_turns_alternate_and_are_all_of_a_run_without_them(folder: Path, tmp_path: Path) -> None:
    for name in ("conftest.py", "deep.py"):
        shutil.copy(folder / name, tmp_path)
    (tmp_path / "test_turns.py").write_text(TAKING_TURNS)
    assert len(collected(tmp_path)) == 7
    even, odd = (collected(tmp_path, "--turn", str(turn)) for turn in (10, 11))
    assert (len(even), len(odd)) == (3, 4)
    assert even | odd == collected(tmp_path)
    assert collected(tmp_path, "--turn", "12") == even


def test_a_run_needs_no_plugin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    assert collected(folder) == {"test_cases[0]"}


@pytest.mark.parametrize("text", ["4/4", "x", "-1/4"])
def test_a_slice_that_is_none_is_refused(folder: Path, text: str) -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        collected(folder, f"--slice={text}")
    assert "expected I/N" in caught.value.stderr
