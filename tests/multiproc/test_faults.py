"""A rank fails or leaves: the others get an error, and the job ends with the right exit code."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from deep import deep

from multiproc.job import WORKERS, Outcome, launch

NP = 3


def run_scenario(backend: str, name: str, folder: Path) -> Outcome:
    for rank in range(NP - 1):
        os.mkfifo(folder / f"enqueued{rank}")
    started = time.monotonic()
    outcome = launch(NP, backend, str(WORKERS / "scenario.py"), name, str(folder), timeout=60)
    assert time.monotonic() - started < 40, "nobody may wait for a rank that is gone"
    return outcome


def survivors(folder: Path) -> list[str]:
    return [(folder / f"rank{rank}.txt").read_text() for rank in range(NP - 1)]


@pytest.mark.parametrize("backend", [deep("gloo"), deep("mpi"), "local"])
def test_a_rank_that_leaves_early_is_named(backend: str, tmp_path: Path) -> None:
    outcome = run_scenario(backend, "leave", tmp_path)
    assert outcome.code != 0, outcome.output
    for text in survivors(tmp_path):
        assert "waits for all" in text and f"rank {NP - 1}" in text, text


@pytest.mark.parametrize("backend", [deep("gloo"), "local"])
@pytest.mark.parametrize(
    ("name", "code", "cause"),
    [("fail", 1, "broken on purpose"), ("exit", 23, "23"), ("kill", 137, "signal 9")],
)
def test_failures_reach_the_others_and_the_exit_code(
    backend: str, name: str, code: int, cause: str, tmp_path: Path
) -> None:
    outcome = run_scenario(backend, name, tmp_path)
    assert outcome.code == code, outcome.output
    report = outcome.output.partition("mydistrun: ")[2]
    assert report.startswith(f"rank {NP - 1} ") and cause in report, outcome.output
    for text in survivors(tmp_path):
        assert text != "no error" and f"rank {NP - 1}" in text, text
        if name == "kill":
            assert "allreduce 'waits for all'" in text and "SIGKILL (signal 9)" in text, text


@pytest.mark.parametrize("backend", ["mpi"])
@pytest.mark.parametrize("name", [deep("fail"), deep("exit"), "kill"])
def test_failures_end_an_mpi_job(backend: str, name: str, tmp_path: Path) -> None:
    # mpirun itself takes the survivors down, perhaps before they can report.
    outcome = run_scenario(backend, name, tmp_path)
    assert outcome.code != 0, outcome.output
    if name == "kill":
        report = outcome.output.partition("mydistrun: ")[2].splitlines()[0]
        assert "SIGKILL" in report and report.endswith("in allreduce 'waits for all'"), report
    for rank in range(NP - 1):
        path = tmp_path / f"rank{rank}.txt"
        if name != "kill":
            assert not path.exists() or path.read_text() != "no error"
            continue
        # They share no memory with it: their heartbeats tell them.
        text = path.read_text() if path.exists() else outcome.output
        assert f"allreduce 'waits for all': rank {NP - 1} (host " in text, text
        assert "has died; see its output" in text, text


def test_a_stopped_rank_keeps_nobody_from_its_error(tmp_path: Path) -> None:
    """Nor does what it writes when it goes on reach memory that is in use again."""
    worker = str(WORKERS / "stopped_and_killed.py")
    launch(NP, "local", worker, str(tmp_path), timeout=120).expect_success()
    learned = (tmp_path / "learned").read_text()
    assert learned.startswith("PeerLostError") and "rank 1 " in learned, learned
    assert (tmp_path / "memory").read_text() == "intact"
