"""The end of a job: ranks that are done wait for one that runs, and not for one that has failed."""

from __future__ import annotations

import re
import time

import pytest
from deep import deep

from multiproc.job import backend_environment, launch

SHUTDOWN_S = "0.5"
EXITS = """
import sys, time, torch, mydist as md
md.init()
md.allreduce(torch.ones(3), name="last")
if md.rank() == 1:
    sys.exit(int(sys.argv[1]))
time.sleep(20)
"""
# Rank 1 gets the signal while it waits for rank 0 in shutdown().
HANDLES = """
import os, signal, sys, threading, time, torch, mydist as md
md.init()
md.allreduce(torch.ones(3), name="last")
if md.rank() == 0:
    time.sleep(60)
def handle(number, frame):
    md.shutdown()
    print("handled", flush=True)
    sys.exit(4)
number = getattr(signal, sys.argv[1])
signal.signal(number, handle)
threading.Timer(1, os.kill, (os.getpid(), number)).start()
md.shutdown()
"""
# Rank 1 is in shutdown() on two threads and waits for rank 0; Ctrl-C comes to its main thread.
IN_BOTH = """
import os, signal, sys, threading, time, torch, mydist as md
md.init()
md.allreduce(torch.ones(3), name="last")
if md.rank() == 0:
    time.sleep(60)
first = threading.Thread(target=md.shutdown)
first.start()
while md.is_initialized():
    time.sleep(0.01)
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    getattr(md, sys.argv[1])()
except KeyboardInterrupt:
    first.join()
    sys.exit(4)
"""
# Rank 0 has more to do than the others when the last step is over, as with a model to be written.
WRITES = """
import sys, time, torch, mydist as md
md.init()
md.allreduce(torch.ones(3), name="last")
if md.rank() == 0:
    time.sleep(float(sys.argv[1]))
    print("written", time.monotonic(), flush=True)
if len(sys.argv) > 2:
    md.shutdown()
    print("left", time.monotonic(), flush=True)
"""
# Rank 0 runs on after shutdown().
RUNS_ON = """
import time, torch, mydist as md
md.init()
rank = md.rank()
md.allreduce(torch.ones(3), name="last")
md.shutdown()
if rank == 0:
    time.sleep(12)
"""
# Rank 1 fails, and rank 0 calls no collective that could tell it so.
FAILS = """
import sys, time, torch, mydist as md
md.init()
md.allreduce(torch.ones(3), name="last")
if md.rank() == 1:
    raise ValueError("this rank has failed")
time.sleep(60)
"""


def environment(backend: str) -> dict[str, str]:
    return {**backend_environment(backend), "MYDIST_SHUTDOWN_SECONDS": SHUTDOWN_S}


@pytest.mark.parametrize("backend", ["mpi", "local", deep("gloo")])
def test_the_job_ends_in_order_after_a_rank_that_writes(backend: str) -> None:
    arguments = ("-c", WRITES, "3", "explicit")
    output = launch(3, backend, *arguments, timeout=60, env=environment(backend))
    text = output.expect_success().output
    (written,) = [float(at) for at in re.findall(r"written (\S+)", text)]
    left = [float(at) for at in re.findall(r"left (\S+)", text)]
    assert len(left) == 3, text
    assert min(left) > written, text


@pytest.mark.parametrize("status", ["3", deep("0")])
def test_a_rank_that_exits_waits_only_where_it_has_not_failed(status: str) -> None:
    begin = time.monotonic()
    job = launch(2, "local", "-c", EXITS, status, timeout=60, env=environment("local"))
    assert job.code == int(status), job.output
    assert (time.monotonic() - begin > 20) == (status == "0"), job.output


@pytest.mark.parametrize("signum", ["SIGTERM"])
def test_a_handler_may_shut_down_once_more(signum: str) -> None:
    begin = time.monotonic()
    job = launch(2, "local", "-c", HANDLES, signum, timeout=60, env=environment("local"))
    assert "handled" in job.output
    assert time.monotonic() - begin < 40, job.output


@pytest.mark.parametrize("call", ["shutdown", deep("init")])
def test_ctrl_c_ends_the_wait_for_a_thread_that_shuts_down(call: str) -> None:
    begin = time.monotonic()
    job = launch(2, "local", "-c", IN_BOTH, call, timeout=80, env=environment("local"))
    assert job.code == 4, job.output
    assert time.monotonic() - begin < 40, job.output


@pytest.mark.parametrize("backend", ["local", deep("gloo"), deep("mpi")])
def test_a_failed_rank_does_not_wait(backend: str) -> None:
    begin = time.monotonic()
    job = launch(2, backend, "-c", FAILS, timeout=50, env=environment(backend))
    assert job.code == 1, job.output
    assert "this rank has failed" in job.output
    assert time.monotonic() - begin < 30


@pytest.mark.deep
def test_a_line_tells_whom_the_others_wait_for() -> None:
    job = launch(3, "local", "-c", WRITES, "12", timeout=60, env=environment("local"))
    lines = [line for line in job.expect_success().output.splitlines() if "shutdown has" in line]
    assert len(lines) == 1, job.output
    assert re.search(r"waited 1\d\.\d s for other ranks\. rank 0 \(host ", lines[0]), lines[0]
    assert "runs and has not shut down" in lines[0]


@pytest.mark.deep
def test_a_line_tells_of_a_rank_that_waits_in_mpi_finalize() -> None:
    job = launch(3, "mpi", "-c", RUNS_ON, timeout=60, env=environment("mpi")).expect_success()
    lines = [line for line in job.output.splitlines() if "in MPI_Finalize" in line]
    assert len(lines) == 1 and "[rank 1/3]" in lines[0], job.output
