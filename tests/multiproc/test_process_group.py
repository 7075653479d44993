"""torch.distributed's own programs over the backend "mydist", in jobs of several ranks."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest
from deep import deep

from multiproc.job import WORKERS, Outcome, launcher_command, run

WORKER = WORKERS / "process_group.py"
MODULES = ("torch_programs.py", "sharded_programs.py", "wrong_calls.py", "rest_of_backend.py")
CHECKS = [
    name
    for path in (WORKER, *(WORKER.parent.parent / name for name in MODULES))
    for name in re.findall(r"^@check\ndef (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
]

JOBS = {
    "2 ranks": (2, {}),
    "3 ranks over Gloo": (3, {"MYDIST_SHARED_MEMORY": "0"}),
    "3 ranks over MPI": (3, {"MYDIST_SHARED_MEMORY": "0"}),
    "4 ranks on 2 hosts": (4, {"TEST_RANKS_PER_HOST": "2"}),
    "1 rank": (1, {}),
    "3 ranks": (3, {}),
}


def expect_passed(outcome: Outcome, size: int, over_mpi: bool = False) -> None:
    failed = [line for line in outcome.output.splitlines() if "FAILED " in line]
    assert not failed, "\n".join(failed)
    if (
        not over_mpi
    ):  # There a group that has failed cannot be freed, and mpirun complains at the end.
        outcome.expect_success()
    for name in [*CHECKS, "destroyed_and_made_again"]:
        assert outcome.output.count(f"PASSED {name}\n") == size, f"{name}:\n{outcome.output}"


@pytest.mark.parametrize(
    "job",
    [
        *("2 ranks", "4 ranks on 2 hosts"),
        *map(deep, ("1 rank", "3 ranks", "3 ranks over Gloo", "3 ranks over MPI")),
    ],
)
def test_programs_of_torch(job: str) -> None:
    assert len(CHECKS) > 20
    size, environment = JOBS[job]
    command = launcher_command(size, "mpi" if "MPI" in job else "local", str(WORKER))
    expect_passed(run(command, timeout=300, env=environment), size, over_mpi="MPI" in job)


def test_under_torchrun() -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    outcome = run([*command, str(WORKERS / "process_group_smoke.py")], timeout=120)
    assert outcome.expect_success().output.count("SUM 3.0") == 2


@pytest.mark.parametrize("shares_memory", ["0", "1"])
def test_under_mpirun(shares_memory: str) -> None:
    command = ["mpirun", "--oversubscribe", "-np", "3", sys.executable]
    command += [str(WORKERS / "process_group_smoke.py"), "mydist://"]
    environment = {"MYDIST_SHARED_MEMORY": shares_memory, "MYDIST_LOG_LEVEL": "info"}
    output = run(command, timeout=120, env=environment).expect_success().output
    assert output.count("SUM 6.0") == 3
    # Without shared memory the group connects its ranks by MPI.
    connections = len(re.findall(r"connected over \S.* as rank \d of 3", output))
    assert connections == (3 if shares_memory == "0" else 0), output


def test_an_mpi_without_threads_leaves_the_groups_to_gloo(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py", reason="mpi4py is not installed")
    command = ["mpirun", "--oversubscribe", "-np", "2", sys.executable]
    command += [str(WORKERS / "process_group_smoke.py"), "serialized", str(tmp_path / "store")]
    outcome = run(command, timeout=120, env={"MYDIST_SHARED_MEMORY": "0"}).expect_success()
    assert outcome.output.count("SUM 3.0") == 2
    warning = "group '0' does not use mpi: this MPI library provides MPI_THREAD_SERIALIZED"
    assert outcome.output.count(warning) == 1, outcome.output


def test_a_killed_rank_is_named_at_once() -> None:
    outcome = run(
        launcher_command(3, "local", str(WORKERS / "process_group_smoke.py"), "kill"), timeout=120
    )
    lost = re.findall(
        r"LOST after ([\d.]+) s: PEER_LOST: group '0', operation 2, allreduce of 1 float32, Sum: "
        r"rank 1 \(host \S+, pid (\d+)\) has died .* SIGKILL \(signal 9\) ended rank 1\.",
        outcome.output,
    )
    assert len(lost) == 2, outcome.output
    assert all(float(seconds) < 2 for seconds, _ in lost)
    assert f"killed by {signal.SIGKILL.name}" in outcome.output


def test_importing_mydist_does_not_load_the_backend(tmp_path: Path) -> None:
    text = "import sys, mydist; assert not {'torch', 'mydist._c10d'} & set(sys.modules)"
    run(
        [sys.executable, "-c", text], timeout=60, env={"HOME": os.fspath(tmp_path)}
    ).expect_success()
