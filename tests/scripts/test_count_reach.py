"""scripts/count_reach.py counts what a change touches outside its own files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "count_reach.py"


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Seven files in a first commit."""
    _git(tmp_path, "init", "-q")
    for number in range(7):
        (tmp_path / f"file{number}.txt").write_text("one\ntwo\nthree\n" * 5 + str(number))
    _commit(tmp_path)
    return tmp_path


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)


def _commit(folder: Path) -> None:
    _git(folder, "add", "-A")
    _git(folder, "commit", "-qm", "change")


def _count(folder: Path, *arguments: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, SCRIPT, *arguments, "HEAD~1..HEAD"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout.splitlines()


def test_files_of_its_own_do_not_count(repository: Path) -> None:
    (repository / "star").mkdir()
    for name in ("star.cc", "star.h", "star_test.cc"):
        (repository / "star" / name).write_text(name)
    (repository / "file0.txt").write_text("a row")
    _commit(repository)
    code, lines = _count(repository)
    assert code == 0
    assert lines == [
        "  file0.txt",
        "1 existing files touched outside its own, at most 5 allowed",
    ]
    assert _count(repository, "--own", "file0.txt")[1][-1].startswith("0 existing files")


def test_five_pass_and_six_fail(repository: Path) -> None:
    for number in range(4):
        (repository / f"file{number}.txt").write_text("changed")
    (repository / "file4.txt").unlink()
    _commit(repository)
    assert _count(repository)[0] == 0
    _git(repository, "mv", "file5.txt", "renamed.txt")
    _git(repository, "commit", "-q", "--amend", "-am", "change")
    code, lines = _count(repository)
    assert code == 1
    assert "  file5.txt" in lines
    assert lines[-1] == "6 existing files touched outside its own, at most 5 allowed"
    assert _count(repository, "--limit", "6")[0] == 0


def test_an_unknown_range_is_an_error(tmp_path: Path) -> None:
    _git(tmp_path, "init", "-q")
    assert _count(tmp_path)[0] == 2
