"""A machine that is too small or stands still for a while: no rank is called dead."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from multiproc.job import launcher_command
from multiproc.processes import descendants
from multiproc.watched_job import watched_job

NP = 4
LIMIT_S = 1.5  # After which a rank that alone is silent is taken for one that is lost.
REDUCES = """
import os, sys, torch, mydist as md
from pathlib import Path
from multiproc.watched_job import write_row
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
folder = Path(sys.argv[1])
md.init()
data, steps, goes_on = torch.full((50_000,), md.rank() + 1.0), 0, True
write_row(folder, f"ready{md.rank()}", {"pid": os.getpid()})
while goes_on:
    total = md.allreduce(data, name="x", op=md.Sum)
    assert bool((total == md.size() * (md.size() + 1) / 2).all())
    enough = torch.tensor([(folder / "enough").exists()])
    goes_on = not bool(md.broadcast(enough, 0, name="enough"))
    steps += 1
write_row(folder, f"done{md.rank()}", {"steps": steps})
"""


@pytest.mark.turns(2)
def test_a_machine_that_pauses_loses_no_rank(tmp_path: Path) -> None:
    """More ranks than cores, and then all of them stopped at once, with their launcher."""
    script = tmp_path / "reduces.py"
    script.write_text(REDUCES)
    env = {"MYDIST_HEARTBEAT_TIMEOUT_SECONDS": str(LIMIT_S), "MYDIST_STALL_SHUTDOWN_SECONDS": "0"}
    with watched_job(
        launcher_command(NP, "local", str(script), str(tmp_path)), env, tmp_path
    ) as job:
        for rank in range(NP):
            job.row(f"ready{rank}")
        family = [job.process.pid, *descendants(job.process.pid)]
        for stop in (signal.SIGSTOP, signal.SIGCONT):
            for pid in family:
                os.kill(pid, stop)
            time.sleep(2 * LIMIT_S if stop is signal.SIGSTOP else 0.5)
        job.tell("enough")
        steps = {job.row(f"done{rank}")["steps"] for rank in range(NP)}
        assert len(steps) == 1 and steps.pop() > 0
        assert job.process.wait(60) == 0, job.output()
        assert "Error" not in job.output() and "has died" not in job.output(), job.output()
