"""mydist.init() under every launcher, and many times in one process."""

from __future__ import annotations

import json
import re
import shutil
import sys
from typing import Any

import pytest
from deep import deep

from multiproc.job import WORKERS, launch, launcher_command, run
from mydist.job.rank_record import Numbers, leave_record

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

HELLO = str(WORKERS / "hello.py")


def ranks_of(output: str) -> list[dict[str, Any]]:
    """What hello.py printed on rank 0, whatever prefix the launcher put in front."""
    lines = [line for line in output.splitlines() if "RANKS " in line]
    assert len(lines) == 1, output
    found: list[dict[str, Any]] = json.loads(lines[0].partition("RANKS ")[2])
    return found


def expect_ranks(output: str, size: int, backend: str) -> None:
    ranks = ranks_of(output)
    assert [r["rank"] for r in ranks] == list(range(size))
    assert all(r["local_rank"] == r["rank"] for r in ranks)
    assert {r["size"] for r in ranks} == {r["local_size"] for r in ranks} == {size}
    assert {r["total"] for r in ranks} == {size * (size + 1) // 2}
    assert {r["backend"] for r in ranks} == {backend}


@pytest.mark.parametrize("backend", ["gloo", "mpi", "local"])
def test_mydistrun(backend: str) -> None:
    expect_ranks(launch(3, backend, HELLO).expect_success().output, 3, backend)


@pytest.mark.parametrize(
    ("shared_memory", "backend", "why"),
    [
        ("1", "local", "all ranks are on one host and share memory"),
        ("0", "gloo", "the ranks do not share memory: MYDIST_SHARED_MEMORY is 0"),
    ],
)
def test_mydistrun_chooses_and_says_why(shared_memory: str, backend: str, why: str) -> None:
    env = {"MYDIST_SHARED_MEMORY": shared_memory, "MYDIST_LOG_LEVEL": "info"}
    outcome = run(launcher_command(2, "local", HELLO), timeout=60, env=env).expect_success()
    expect_ranks(outcome.output, 2, backend)
    assert outcome.output.count(f"uses the {backend} backend: {why}") == 1, outcome.output


@pytest.mark.parametrize(
    ("backend", "why"),
    [deep("gloo", "MYDIST_CONTROLLER names it"), ("mpi", "the job was started with it")],
)
def test_what_is_asked_for_is_taken_although_memory_is_shared(backend: str, why: str) -> None:
    env = {"MYDIST_LOG_LEVEL": "info"}
    outcome = run(launcher_command(2, backend, HELLO), timeout=60, env=env).expect_success()
    expect_ranks(outcome.output, 2, backend)
    assert outcome.output.count(f"uses the {backend} backend: {why}") == 1, outcome.output
    assert "reduce through shared memory" in outcome.output


def test_plain_python() -> None:
    outcome = run([sys.executable, HELLO], timeout=60).expect_success()
    expect_ranks(outcome.output, 1, "local")


def test_torchrun_below_a_rank_of_mydistrun() -> None:
    left = {"MYDIST_RANK": "1", "MYDIST_SIZE": "4", "MYDIST_JOB_ID": "outer"}
    left |= {"MYDIST_RENDEZVOUS": "127.0.0.1:1", "MYDIST_JOB_KEY_FD": "99"}
    leave_record(Numbers(1, 4, 1, 4, 0, 1, True), left, {})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    outcome = run([*command, "--nproc-per-node", "2", HELLO], timeout=90, env=left)
    expect_ranks(outcome.expect_success().output, 2, "local")


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
MYDISTRUN = [sys.executable, "-m", "mydist.launcher", "-np", "2", sys.executable]


OVER_GLOO = [*MYDISTRUN[:-1], "--gloo", sys.executable]


@pytest.mark.parametrize(
    ("command", "backend", "when"),
    [
        (TORCHRUN, "local", "before"),
        (MYDISTRUN, "mpi", "after"),
        deep(TORCHRUN, "local", "after"),
        deep(MYDISTRUN, "mpi", "before"),
        *(deep(OVER_GLOO, "gloo", when) for when in ("before", "after")),
    ],
)
def test_a_job_below_a_rank_of_mpi(command: list[str], backend: str, when: str) -> None:
    outer = launcher_command(2, "mpi", str(WORKERS / "starts_a_job.py"), when, *command, HELLO)
    expect_ranks(run(outer, timeout=120).expect_success().output, 2, backend)


def test_an_mpi_started_by_mpi4py_is_reused() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    command = ["mpirun", "-np", "2", "--oversubscribe", sys.executable]
    outcome = run([*command, str(WORKERS / "with_mpi4py.py")], timeout=60).expect_success()
    assert outcome.output.count("TOTALS [2, 2, 2, 2, 2] finalized False") == 2, outcome.output


@pytest.mark.parametrize("backend", ["mpi"])
def test_plain_mpirun(backend: str) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not on PATH")
    command = ["mpirun", "-np", "2", "--oversubscribe", sys.executable, HELLO]
    expect_ranks(run(command, timeout=60).expect_success().output, 2, backend)


@pytest.mark.parametrize("backend", ["gloo", deep("mpi"), deep("local")])
@pytest.mark.parametrize("np", [3, deep(4)])
def test_jobs_of_some_of_the_ranks(np: int, backend: str) -> None:
    outcome = launch(np, backend, str(WORKERS / "some_ranks.py"), "lists", timeout=90)
    expect_jobs(outcome.expect_success().output, np)


def test_jobs_of_some_of_the_ranks_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "3", str(WORKERS / "some_ranks.py"), "lists"]
    expect_jobs(run(command, timeout=90).expect_success().output, 3)


def test_jobs_of_mpi_communicators() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    command = ["mpirun", "-np", "3", "--oversubscribe", sys.executable]
    command += [str(WORKERS / "some_ranks.py"), "communicators"]
    expect_jobs(run(command, timeout=90).expect_success().output, 3)


def expect_jobs(output: str, np: int) -> None:
    """Rank 1 alone, the others together; then all. `[rank, size, ranks that took part]` of each."""
    # mpirun may put the lines of several ranks into one.
    found = [json.JSONDecoder().raw_decode(part)[0] for part in output.split("JOBS ")[1:]]
    others = [rank for rank in range(np) if rank != 1]
    wanted = [[[i, np - 1, others], [rank, np, np]] for i, rank in enumerate(others)]
    wanted.append([[0, 1, [1]], [1, np, np]])
    assert sorted(found) == sorted(wanted), output


@pytest.mark.parametrize("backend", [deep("gloo"), deep("mpi"), "local"])
@pytest.mark.parametrize("np", [3, deep(4)])
def test_process_sets_at_the_start(np: int, backend: str) -> None:
    command = str(WORKERS / "start_with_sets.py")
    outcome = launch(np, backend, command, "lists").expect_success()
    known = [[1, [0, 1], 2], [2, [0, 2], 2]]
    expect_sets(
        outcome.output, [[[n, r, t if rank in r else 0] for n, r, t in known] for rank in range(np)]
    )


@pytest.mark.deep
def test_process_sets_of_mpi_communicators() -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    command = ["mpirun", "-np", "4", "--oversubscribe", sys.executable]
    command += [str(WORKERS / "start_with_sets.py"), "communicators"]
    even, odd = [1, [0, 2], 2], [2, [1, 3], 2]
    outside, inside = [3, [1, 2], 0], [3, [1, 2], 2]
    expect_sets(
        run(command, timeout=60).expect_success().output,
        [[even, outside], [odd, inside], [even, inside], [odd, outside]],
    )


def expect_sets(output: str, wanted: list[object]) -> None:
    """`[number, ranks, how many took part]` of each set, of each rank, from both starts."""
    lines = [line.partition("SETS ")[2] for line in output.splitlines() if "SETS " in line]
    assert [json.loads(line) for line in lines] == [wanted] * 2, output


@pytest.mark.parametrize("cycles", [40, deep(1000)])
@pytest.mark.parametrize("backend", [deep("gloo"), deep("mpi"), "local"])
def test_many_cycles_in_one_process(backend: str, cycles: int) -> None:
    outcome = launch(2, backend, str(WORKERS / "cycles.py"), str(cycles), timeout=400)
    assert outcome.expect_success().output.count(f"CYCLES {cycles}") == 2


ENDS_BEFORE_INIT = """
import os, sys
if os.environ["RANK"] == "1":
    sys.exit(0)
import mydist as md
md.init()
"""


def test_a_rank_that_ends_before_init_is_blamed() -> None:
    env = {"MYDIST_TIMEOUT_SECONDS": "1"}
    job = launch(2, "local", "-c", ENDS_BEFORE_INIT, timeout=60, env=env)
    assert job.code == 1, job.output
    report = job.output.partition("mydistrun: ")[2].splitlines()[0]
    assert report.startswith("rank 1 ") and "exited with code 0" in report, job.output
    assert "still needed it for init" in report


# Rank 1 is stopped when the ranks are connected and add the sets.
STOPPED_BEFORE_SETS = """
import os, signal
import mydist as md
from mydist.job import init
if os.environ["RANK"] == "1":
    init.add_to_job = lambda *sets: os.kill(os.getpid(), signal.SIGSTOP)
md.init(process_sets=[md.ProcessSet([0])])
"""


def test_a_rank_that_stops_while_sets_are_added_is_waited_for_no_longer_than_set() -> None:
    env = {"MYDIST_TIMEOUT_SECONDS": "3", "MYDIST_STALL_SHUTDOWN_SECONDS": "0"}
    job = launch(2, "local", "-c", STOPPED_BEFORE_SETS, timeout=60, env=env)
    assert job.code == 1, job.output
    assert "the process sets were not added within 3 s" in job.output


# MPI_Init itself waits for all ranks.
LATE_TO_MPI = """
import os, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    time.sleep(100)
import mydist as md
try:
    md.init()
except md.CollectiveTimeoutError as error:
    raise SystemExit(f"after all: {error}")
"""


STOPPED_BEFORE_MPI = """
import os, signal
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
    os.kill(os.getpid(), signal.SIGSTOP)
import mydist as md
try:
    md.init()
except md.CollectiveTimeoutError as error:
    print(f"blames {error.failure['ranks']} of pid {error.failure['pid']}", flush=True)
    raise
"""


def test_a_rank_that_is_stopped_before_mpi_is_named() -> None:
    job = launch(
        3, "mpi", "-c", STOPPED_BEFORE_MPI, timeout=90, env={"MYDIST_TIMEOUT_SECONDS": "4"}
    )
    assert job.code == 1, job.output
    blamed = re.search(r"blames \[1\] of pid (\d+)\n", job.output)
    assert blamed, job.output
    advice = f"Resume it (kill -CONT {blamed[1]})"
    assert "rank 1 (host " in job.output and advice in job.output, job.output
    report = job.output.partition("mydistrun: ")[2]
    culprit = rf"rank 1 on host \S+ \(pid {blamed[1]}\) gave no answer\b.*"
    assert re.match(culprit + "; other ranks timed out waiting for it in init\n", report), report


def test_a_rank_that_never_comes_to_mpi() -> None:
    env = {"MYDIST_TIMEOUT_SECONDS": "1"}
    job = launch(2, "mpi", "-c", LATE_TO_MPI, timeout=90, env=env)
    assert job.code == 1, job.output
    assert "after all: MPI_Init did not return in time" in job.output
