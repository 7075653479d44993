"""Ranks that run on when the others have ended are named, and those that are stopped as such."""

from __future__ import annotations

import os
import re
import signal
import sys

import pytest

from mydist.launcher import awaited_ranks
from mydist.launcher.awaited_ranks import AwaitedRank, wait_line
from mydist.launcher.hosts import Host
from mydist.launcher.job import run_job
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.output import JobOutput

STOPPED = "a signal or a debugger has stopped"


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (AwaitedRank(1, "h1"), "rank 1 on host h1"),
        (AwaitedRank(1, "h1", 7), "rank 1 on host h1 (pid 7)"),
        (
            AwaitedRank(1, "h1", 7, (7, 9)),
            f"rank 1 on host h1 (pid 7; {STOPPED} it: kill -CONT 7 resumes it, kill -KILL 7 "
            "ends it)",
        ),
        (
            AwaitedRank(1, "h1", 7, (9,)),
            f"rank 1 on host h1 (pid 7; {STOPPED} its process 9: kill -CONT 9 resumes it, "
            "kill -KILL 9 ends it)",
        ),
    ],
)
def test_an_awaited_rank_is_named_with_what_stopped_it(rank: AwaitedRank, words: str) -> None:
    assert wait_line([rank], 1, 10.2) == (
        f"mydistrun: still waits for {words}; the other rank ended 10 s ago"
    )


def test_many_awaited_ranks_fill_one_line() -> None:
    line = wait_line([AwaitedRank(rank, "h1") for rank in range(3, 20)], 3, 40)
    assert line == (
        "mydistrun: still waits for "
        + ", ".join(f"rank {rank} on host h1" for rank in range(3, 11))
        + " and 9 more; the last of the other 3 ranks ended 40 s ago"
    )


STOPS = """
import os, signal
if os.environ["MYDIST_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def run_and_resume(
    argv: tuple[str, ...], resume_at: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, list[str]]:
    """Runs two ranks, and resumes what that line calls stopped. Exit code, and the lines.

    What is said before a rank has stopped itself, or while it ends, is left out.
    """
    lines: list[str] = []

    def note(self: JobOutput, text: str) -> None:
        stopped = re.findall(r"kill -CONT (\d+)", text)
        if "still waits" in text and not stopped:
            return
        lines.append(text)
        if len(lines) == resume_at:
            os.kill(int(stopped[0]), signal.SIGCONT)

    monkeypatch.setattr(JobOutput, "note", note)
    monkeypatch.setattr(awaited_ranks, "FIRST_LINE_SECONDS", 0.5)
    return run_job(JobSpec(argv, 2, (Host("localhost", 2),)), os.environ), lines


@pytest.mark.parametrize(("resume_at", "is_behind_shell"), [(1, True), (3, False)])
def test_a_stopped_rank_is_named_again_and_again_until_it_goes_on(
    resume_at: int, is_behind_shell: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = (sys.executable, "-c", STOPS)
    # The shell stays the leader: it has something to do afterwards.
    shell = ("sh", "-c", '"$@"; exit $?', "sh", *python)
    code, lines = run_and_resume(shell if is_behind_shell else python, resume_at, monkeypatch)
    assert code == 0, lines
    assert len(lines) == resume_at, lines
    whom = "its process" if is_behind_shell else "it:"
    found = []
    for line in lines:
        assert line.startswith("mydistrun: still waits for rank 1 on host localhost (pid "), line
        assert f"{STOPPED} {whom}" in line, line
        found += re.findall(r"; the other rank ended (\d+) s ago$", line)
    seconds = [int(each) or 0.5 for each in found]
    assert seconds == [seconds[0] * 2**turn for turn in range(resume_at)], lines


FAILS = """
import os, signal, sys
if os.environ["MYDIST_RANK"] == "0":
    sys.exit(3)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pause()
"""


def test_nothing_is_said_while_a_failed_job_is_being_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code, lines = run_and_resume((sys.executable, "-c", FAILS), 0, monkeypatch)
    assert code == 3
    (report,) = lines  # The stop takes 2.3 s.
    assert report.startswith("mydistrun: rank 0 on host localhost"), report
