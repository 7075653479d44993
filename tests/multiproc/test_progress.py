"""What the ranks have completed last: survivors know it also of a lost rank of another host."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from deep import deep
from soon import SOON_S

from multiproc.job import backend_environment, launcher_command
from multiproc.watched_job import watched_job

NP = 3
VICTIM = 2  # Alone on its host.
SILENCE_S = 2.0

# Two seconds let each rank tell its neighbours what it has completed. Then ranks 0 and 1 have come
# further than the victim.
SCRIPT = """
import os, pathlib, sys, time, torch, mydist as md
from multiproc.pretended_hosts import pretend_hosts
from multiproc.watched_job import write_row
pretend_hosts()
md.init()
folder, number, victim = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
others = md.add_process_set([0, 1])
for step in range(5):
    md.allreduce(torch.ones(3), name=f"warm.{step}")
if md.rank() != victim:
    md.allreduce(torch.ones(3), name="further", process_set=others)
write_row(folder, f"ready{md.rank()}", {"pid": os.getpid()})
time.sleep(2.2)
if md.rank() == victim:
    write_row(folder, "struck", {"at": time.monotonic()})
    os.kill(os.getpid(), number)
try:
    md.allreduce(torch.ones(3), name="x")
except md.MydistError as error:
    row = {"error": type(error).__name__, "text": str(error), "failure": error.failure}
    row["at"] = time.monotonic()
    write_row(folder, f"learned{md.rank()}", row)
    raise
"""


@pytest.mark.parametrize(
    ("backend", "fault"),
    [
        ("gloo", signal.SIGKILL),
        ("gloo", signal.SIGSTOP),
        deep("mpi", signal.SIGKILL),
        deep("mpi", signal.SIGSTOP),
    ],
)
def test_survivors_know_how_far_a_lost_rank_of_another_host_had_come(
    backend: str, fault: signal.Signals, tmp_path: Path
) -> None:
    script = ("-c", SCRIPT, str(tmp_path), str(int(fault)), str(VICTIM))
    env = {
        **backend_environment(backend),
        "TEST_RANKS_PER_HOST": "2",
        "MYDIST_HEARTBEAT_TIMEOUT_SECONDS": str(SILENCE_S),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    with watched_job(launcher_command(NP, backend, *script), env, tmp_path) as job:
        struck = job.row("struck")
        for rank in range(NP - 1):
            learned = job.row(f"learned{rank}", timeout=30)
            assert learned["error"] == "PeerLostError", learned
            limit = SILENCE_S if fault is signal.SIGSTOP else 0
            assert learned["at"] - struck["at"] < limit + SOON_S, learned
            failure, text = learned["failure"], learned["text"]
            assert failure["ranks"] == [VICTIM], failure
            progress = failure["progress"]
            assert sorted(progress) == ["0", "1", "2"], progress
            assert 0 <= progress["2"].pop("age") < 10, progress
            assert progress["2"] == {"operation": "allreduce", "tensor": "warm.4", "number": 5}
            for survivor in "01":
                last = {"operation": "allreduce", "tensor": "further", "number": 1}
                assert progress[survivor].pop("age") < 2.5, progress
                assert progress[survivor] == last, progress
            last = (
                r"The last collective of rank 2 was allreduce 'warm\.4', number 5(, as told \S+ s "
            )
            further = r"before)?; that of ranks 0, 1 was allreduce 'further', number 1\.$"
            assert re.search(last + further, text), text
        assert job.process.wait(30) is not None
        report = job.output().partition("mydistrun: ")[2]
        last = r"\n  last collective of rank 2: allreduce 'warm\.4', number 5"
        assert re.search(last + r"(, as told \d+ s before)?\n", report), report
        further = "\n  last collective of ranks 0, 1: allreduce 'further', number 1"
        assert further in report, report
