"""A rank fails or leaves: the others get an error, and the job ends with the right exit code."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from deep import deep
from soon import SOON_S

from multiproc.job import WORKERS, Outcome, launch, run

NP = 3
LAST = NP - 1

# The last rank goes as its first argument says; the others catch that, and go as the second says.
CATCHES = """
import os, signal, sys, torch, mydist as md
md.init()
md.allreduce(torch.ones(4), name="warm")
if md.rank() == md.size() - 1:
    exec(sys.argv[1])
try:
    md.allreduce(torch.ones(4), name="x")
except md.MydistError:
    exec(sys.argv[2])
"""


@dataclass
class Scenario:
    """How a job ended, and what its ranks wrote."""

    outcome: Outcome
    folder: Path
    shares_memory: bool = False

    @property
    def report(self) -> str:
        """What mydistrun said at the end."""
        _, found, report = self.outcome.output.partition("mydistrun: ")
        assert found, self.outcome.output
        return report

    def row(self, name: str) -> dict[str, Any]:
        path = self.folder / name
        assert path.exists(), f"no {name}:\n{self.outcome.output}"
        row: dict[str, Any] = json.loads(path.read_text())
        return row

    def expect_learned(self, rank: int, victims: Sequence[int], error: str, *words: str) -> None:
        """What this survivor raised, how soon, and whom of the victims it names."""
        row = self.row(f"learned{rank}")
        assert row["error"] == error, row
        struck = [self.row(f"struck{victim}") for victim in victims]
        assert row["at"] - min(victim["at"] for victim in struck) < SOON_S, row
        (blamed,) = row["failure"]["ranks"]
        assert blamed in victims, row
        pid = struck[victims.index(blamed)]["pid"]
        assert row["failure"]["pid"] == pid and row["failure"]["tensor"] == "waits for all", row
        for word in (f"rank {blamed} (host ", f", pid {pid})", "'waits for all'", *words):
            assert word in row["text"], row
        if self.shares_memory:
            progress = row["failure"]["progress"]
            assert {str(rank) for rank in range(NP)} <= set(progress), row
            for done in progress.values():
                assert 0 <= done.pop("age") < SOON_S, row
                assert done == {"operation": "allreduce", "tensor": "warm.0", "number": 5}, row
            done = f"The last collective of rank {blamed} was allreduce 'warm.0', number 5"
            assert done in row["text"], row
        last = row["failure"]["own_progress"]
        assert 0 <= last.pop("ago") < SOON_S, row
        assert last == {"operation": "allreduce", "tensor": "warm.0", "number": 5}, row


def scenario_command(
    name: str, folder: Path, victims: Sequence[int] = (LAST,), np: int = NP
) -> tuple[str, ...]:
    """What each rank runs; the pipes are in the folder."""
    for victim in victims:
        for rank in set(range(np)) - set(victims):
            os.mkfifo(folder / f"enqueued{rank}.{victim}")
    return str(WORKERS / "scenario.py"), name, str(folder), ",".join(map(str, victims))


def run_scenario(
    backend: str, name: str, folder: Path, victims: Sequence[int] = (LAST,), np: int = NP
) -> Scenario:
    command = scenario_command(name, folder, victims, np)
    shares_memory = backend == "local"
    return Scenario(launch(np, backend, *command, timeout=60), folder, shares_memory)


@pytest.mark.parametrize("backend", [deep("gloo"), deep("mpi"), "local"])
def test_a_rank_that_leaves_early_is_named(backend: str, tmp_path: Path) -> None:
    job = run_scenario(backend, "leave", tmp_path)
    assert job.outcome.code != 0, job.outcome.output
    for rank in range(LAST):
        job.expect_learned(rank, [LAST], "AbortedError", "has left the job")
    if backend != "mpi":  # mpirun tells no exit code of a rank that ends with 0.
        assert job.report.startswith(f"rank {LAST} "), job.report
        told = "exited with code 0", "other ranks still needed it for allreduce 'waits for all'"
        assert all(words in job.report.splitlines()[0] for words in told), job.report


@pytest.mark.parametrize("backend", [deep("gloo"), "local"])
@pytest.mark.parametrize(
    ("name", "code", "error", "cause"),
    [
        ("fail", 1, "AbortedError", "RuntimeError: broken on purpose"),
        deep("exit", 23, "AbortedError", "exited with code 23"),
        ("kill", 137, "PeerLostError", "SIGKILL (signal 9)"),
        ("crash", 139, "PeerLostError", "SIGSEGV (signal 11)"),
        deep("abort", 134, "PeerLostError", "SIGABRT (signal 6)"),
    ],
)
def test_failures_reach_the_others_and_the_exit_code(
    backend: str, name: str, code: int, error: str, cause: str, tmp_path: Path
) -> None:
    job = run_scenario(backend, name, tmp_path)
    assert job.outcome.code == code, job.outcome.output
    first = job.report.partition("\n  then ")[0]  # Without what is said of other ranks.
    assert first.startswith(f"rank {LAST} ") and cause in first, job.outcome.output
    if name == "fail":  # Its error says nothing of how far it has come.
        last = "\n  last collective of ranks 0-2: allreduce 'warm.0', number 5\n"
        assert last in job.report, job.outcome.output
    is_signal = error == "PeerLostError"
    for rank in range(LAST):
        job.expect_learned(rank, [LAST], error, *([cause] if is_signal else []))
        told = job.row(f"learned{rank}")["failure"]["signal"]
        assert told == (code - 128 if is_signal else 0)


@pytest.mark.parametrize(
    "end", ["sys.exit(1)", deep("raise SystemExit(1)"), deep("os._exit(1)"), deep("sys.exit(0)")]
)
def test_the_report_has_operation_and_tensor_of_a_loss_that_is_caught(end: str) -> None:
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    job = launch(NP, "local", "-c", CATCHES, kill, end, timeout=60)
    assert job.code == 137, job.output
    report = job.output.partition("mydistrun: ")[2].splitlines()
    assert report[0].startswith(f"rank {LAST} ") and "SIGKILL" in report[0], job.output
    assert report[0].endswith("; other ranks lost it in allreduce 'x'"), job.output
    if "(1)" in end:  # mydistrun may be sooner to end them.
        words = "exited with code 1: PeerLostError in allreduce 'x'", "stopped by mydistrun"
        assert any(word in line for line in report[1:] for word in words), job.output


def test_ranks_that_catch_a_loss_and_exit_with_0_are_not_blamed() -> None:
    job = launch(NP, "local", "-c", CATCHES, "sys.exit(0)", "sys.exit(0)", timeout=60)
    assert "mydistrun: " not in job.expect_success().output


@pytest.mark.parametrize(
    ("backend", "victims"), [("local", (0, 3)), deep("gloo", (0, 3)), deep("gloo", (1, 2))]
)
def test_two_ranks_that_die_at_once_are_both_reported(
    backend: str, victims: tuple[int, ...], tmp_path: Path
) -> None:
    job = run_scenario(backend, "kill", tmp_path, victims, np=4)
    assert job.outcome.code == 137, job.outcome.output
    for rank in set(range(4)) - set(victims):
        job.expect_learned(rank, victims, "PeerLostError", "SIGKILL (signal 9)")
    for victim in victims:
        pid = job.row(f"struck{victim}")["pid"]
        line = f"rank {victim} on host localhost (pid {pid}) was killed by SIGKILL (signal 9)"
        assert line in job.report, job.report
    assert int(job.report.split()[1]) in victims, job.report


@pytest.mark.parametrize("backend", ["gloo", deep("local")])
def test_a_death_is_noticed_although_children_live(backend: str, tmp_path: Path) -> None:
    """Which had the connections of the rank open, and so would keep them open."""
    job = run_scenario(backend, "kill beside children", tmp_path)
    assert job.outcome.code == 137, job.outcome.output
    for rank in range(LAST):
        job.expect_learned(rank, [LAST], "PeerLostError", "SIGKILL (signal 9)")


@pytest.mark.parametrize("backend", ["mpi"])
@pytest.mark.parametrize("name", [deep("fail"), deep("exit"), "kill"])
def test_failures_end_an_mpi_job(backend: str, name: str, tmp_path: Path) -> None:
    # mpirun itself takes the survivors down, perhaps before they can report.
    job = run_scenario(backend, name, tmp_path)
    assert job.outcome.code != 0, job.outcome.output
    if name == "kill":
        report = job.report.splitlines()[0]
        assert "SIGKILL" in report and report.endswith("in allreduce 'waits for all'"), report
    for rank in range(LAST):
        if name != "kill":
            if (tmp_path / f"learned{rank}").exists():
                assert job.row(f"learned{rank}")["error"] != "", job.outcome.output
            continue
        # They share no memory with it: their heartbeats tell them.
        ended = f"has died; see its output. SIGKILL (signal 9) ended rank {LAST}."
        job.expect_learned(rank, [LAST], "PeerLostError", ended)
        assert job.row(f"learned{rank}")["failure"]["signal"] == 9


# They tell the ranks nothing of each other. So the ranks of a host ask the kernel.
OTHER_LAUNCHERS = {
    "torchrun": (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(NP)),
    ),
    "mpirun": ("mpirun", "-np", str(NP), "--oversubscribe", sys.executable),
}


@pytest.mark.parametrize("launcher", ["torchrun", deep("mpirun")])
@pytest.mark.parametrize("shares_memory", [deep(False), True])
@pytest.mark.parametrize(
    ("name", "number", "told"),
    [
        ("kill", 9, f"SIGKILL (signal 9) ended rank {LAST}."),
        deep("crash", 11, f"SIGSEGV (signal 11) ended rank {LAST}."),
        deep("vanish", 0, f"Rank {LAST} exited with code 23."),
    ],
)
def test_the_end_of_a_rank_is_told_under_any_launcher(
    launcher: str, shares_memory: bool, name: str, number: int, told: str, tmp_path: Path
) -> None:
    command = OTHER_LAUNCHERS[launcher]
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not on PATH")
    env = {"MYDIST_SHARED_MEMORY": str(int(shares_memory))}
    outcome = run([*command, *scenario_command(name, tmp_path)], timeout=60, env=env)
    job = Scenario(outcome, tmp_path)
    assert outcome.code != 0, outcome.output
    for rank in range(LAST):
        job.expect_learned(rank, [LAST], "PeerLostError", told)
        failure = job.row(f"learned{rank}")["failure"]
        assert failure["signal"] == number
        assert failure["hint"] == f"See the output of rank {LAST}."


def test_a_stopped_rank_keeps_nobody_from_its_error(tmp_path: Path) -> None:
    """Nor does what it writes when it goes on reach memory that is in use again."""
    worker = str(WORKERS / "stopped_and_killed.py")
    launch(NP, "local", worker, str(tmp_path), timeout=120).expect_success()
    learned = (tmp_path / "learned").read_text()
    assert learned.startswith("PeerLostError") and "rank 1 " in learned, learned
    assert (tmp_path / "memory").read_text() == "intact"
