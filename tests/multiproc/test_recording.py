"""The timeline file and what happens when settings are wrong."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from deep import deep

from multiproc.job import WORKERS, job_environment, launch, launcher_command

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

RECORDED = str(WORKERS / "recorded.py")
# "Gradient ready", the first of the six words, is what ENQUEUE marks the end of.
WORDS = {"ENQUEUE", "NEGOTIATE", "FUSE", "REDUCE", "COMPLETE"}


def events_of(path: Path) -> list[dict[str, Any]]:
    """The events of a Chrome trace; fails unless the file is valid JSON."""
    content = json.loads(path.read_text(encoding="utf-8"))
    events = content["traceEvents"] if isinstance(content, dict) else content
    assert isinstance(events, list)
    return events


def expect_all_ranks(path: Path, size: int) -> None:
    events = events_of(path)
    timed = [event for event in events if event["ph"] != "M"]
    for rank in range(size):
        names = {event["name"] for event in timed if event["pid"] == rank}
        assert names >= WORDS | {"ALLREDUCE"}, f"rank {rank} has only {names}"
    assert all(event["ts"] >= 0 for event in timed)


@pytest.mark.parametrize("backend", ["gloo", deep("mpi")])
def test_one_file_with_all_ranks(backend: str, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    flags = ["--timeline-filename", str(path)]
    launch(3, backend, RECORDED, "short", flags=flags).expect_success()
    expect_all_ranks(path, 3)
    lanes = {e["args"]["name"] for e in events_of(path) if e["name"] == "thread_name"}
    assert "grad.0" in lanes and "gathered" in lanes


@pytest.mark.deep
def test_the_file_is_valid_after_a_rank_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    flags = ["--timeline-filename", str(path)]
    outcome = launch(2, "gloo", RECORDED, "kill", flags=flags)
    assert outcome.code == 137, outcome.output
    expect_all_ranks(path, 2)


def test_the_file_is_valid_after_everything_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    command = launcher_command(2, "gloo", RECORDED, "forever")
    command[3:3] = ["--timeline-filename", str(path)]
    job = subprocess.Popen(
        command,
        env=job_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        text=True,
    )
    pids: list[int] = []
    lines: list[str] = []
    try:
        assert job.stdout is not None
        for line in job.stdout:
            lines.append(line)
            if "READY " in line:
                pids.append(int(line.partition("READY ")[2].strip()))
            if len(pids) == 2:
                break
        assert len(pids) == 2, "".join(lines)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
    finally:
        job.kill()
        job.communicate(timeout=30)
    expect_all_ranks(path, 2)


def test_an_unwritable_path_is_one_warning(tmp_path: Path) -> None:
    flags = ["--timeline-filename", str(tmp_path)]
    outcome = launch(2, "gloo", RECORDED, "short", flags=flags).expect_success()
    warnings = [line for line in outcome.output.splitlines() if str(tmp_path) in line]
    assert len(warnings) == 1 and "timeline" in warnings[0].lower(), outcome.output


def test_ranks_with_different_settings_are_refused() -> None:
    code = (
        "import os, mydist\n"
        "if os.environ['RANK'] == '1': os.environ['MYDIST_CACHE_CAPACITY'] = '7'\n"
        "mydist.init()"
    )
    outcome = launch(2, "gloo", "-c", code)
    assert outcome.code == 1, outcome.output
    assert "MismatchError" in outcome.output and "cache_capacity" in outcome.output.lower()
