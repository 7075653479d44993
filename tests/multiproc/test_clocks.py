"""Clocks that differ between hosts, as after a restart of one: only the timeline tells of it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from deep import deep

from multiproc.job import launcher_command, run

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

DAYS_S = 40 * 86_400
# Each rank is on a host of its own, and the one of rank 1 has run for longer.
IN_ITS_TIME = (
    "rank=${MYDIST_RANK:-$OMPI_COMM_WORLD_RANK}; export MYDIST_HOST_ID=host$rank; "
    "if [ $rank = 1 ]; then "
    f'exec unshare --time --monotonic {DAYS_S} --boottime {DAYS_S} --fork "$@"; fi; exec "$@"'
)
REDUCES = """
import time, torch, mydist as md
began = time.monotonic()
md.init()
rank, clocks = md.rank(), md.allgather_object(began)
for step in range(30):
    total = md.allreduce(torch.full((1000,), md.rank() + 1.0), name="x", op=md.Sum)
    assert bool((total == 3).all())
    if step == 15:
        time.sleep(0.5 * md.rank())  # The other one waits, and thinks of its limits.
md.shutdown()
if rank == 0:
    print("APART", clocks[1] - clocks[0])
"""


@pytest.fixture(autouse=True)
def needs_time_namespaces() -> None:
    if shutil.which("unshare") is None:
        pytest.skip("unshare is not installed")
    tried = subprocess.run(
        ["unshare", "--time", "--monotonic", "5", "--fork", "true"],
        capture_output=True,
        check=False,
    )
    if tried.returncode != 0:
        pytest.skip(f"no time namespaces here: {tried.stderr.decode().strip()}")


@pytest.mark.parametrize("backend", ["gloo", deep("mpi")])
def test_ranks_whose_clocks_differ_by_days(backend: str, tmp_path: Path) -> None:
    timeline = tmp_path / "timeline.json"
    script = tmp_path / "reduces.py"
    script.write_text(REDUCES)
    command = launcher_command(
        2, backend, str(script), flags=["--timeline-filename", str(timeline)]
    )
    place = command.index(sys.executable, 1)
    command[place:place] = ["sh", "-c", IN_ITS_TIME, "sh"]
    env = {"MYDIST_STALL_SHUTDOWN_SECONDS": "20", "MYDIST_STALL_WARNING_SECONDS": "10"}
    outcome = run(command, timeout=60, env=env).expect_success()
    (apart,) = [line for line in outcome.output.splitlines() if "APART" in line]
    assert abs(float(apart.split()[-1]) - DAYS_S) < 60, "the clocks are not apart"
    assert "WARNING" not in outcome.output, outcome.output
    content = json.loads(timeline.read_text())
    events = content["traceEvents"] if isinstance(content, dict) else content
    (offset_ns,) = [
        event["args"]["clock_offset_ns"]
        for event in events
        if event["name"] == "mydist_rank" and event["pid"] == 1
    ]
    assert abs(abs(offset_ns) / 1e9 - DAYS_S) < 5, offset_ns
    times_us = [event["ts"] for event in events if event["ph"] != "M"]
    assert max(times_us) - min(times_us) < 60e6, "the events of both ranks are on one clock"
