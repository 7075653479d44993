"""Whole jobs in containers: whatever is the matter with /dev/shm, they train as any other."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from deep import deep

from multiproc.conftest import missing_backends
from multiproc.containers import (
    need_namespaces,
    on_its_host,
    two_minutes_apart,
    with_listing,
    with_own_pids,
    with_shm,
    with_two_hosts,
    without_shm,
)
from multiproc.job import WORKERS, Outcome, run
from multiproc.test_small_memory import GRADIENTS, WORKER, report_of, train, warnings_of

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

PLENTY = "size=256m"
TRAIN = (sys.executable, WORKER, str(GRADIENTS), "6")
FLAGS = {"gloo": (), "mpi": ("--mpi",)}  # Gloo comes by itself.
# Open MPI takes all ranks of a host for ones that share memory, unless it is told.
APART = {"gloo": (), "mpi": ("--mpi-args", "--mca pml ob1 --mca btl self,tcp")}
KILLED = (sys.executable, str(WORKERS / "killed_in_round.py"))


@pytest.fixture(scope="module", autouse=True)
def needs_namespaces() -> None:
    need_namespaces()


@pytest.fixture(scope="module")
def plenty() -> dict[str, Any]:
    """What a job reports that lacks nothing."""
    report, warnings = train(2, "256m")
    assert warnings == [], warnings
    return report


def job(rank_command: Sequence[str], flags: Sequence[str] = (), np: int = 2) -> list[str]:
    """The command of a job."""
    return [sys.executable, "-m", "mydist.launcher", "-np", str(np), *flags, *rank_command]


def expect_trained(outcome: Outcome, plenty: dict[str, Any], backend: str) -> list[str]:
    """The warnings about memory of a job that has trained over this backend."""
    output = outcome.expect_success().output
    report = report_of(output)
    assert report["losses"] == plenty["losses"]
    assert report["backend"] == backend
    return warnings_of(output)


@pytest.mark.parametrize("backend", ["gloo", deep("mpi")])
def test_ranks_that_do_not_share_memory(backend: str, plenty: dict[str, Any]) -> None:
    assert backend not in missing_backends()
    rank = with_shm(PLENTY, *with_own_pids(*TRAIN))
    outcome = run(job(rank, FLAGS[backend] + APART[backend]), timeout=100)
    (warning,) = expect_trained(outcome, plenty, backend)
    assert "rank 1: " in warning
    assert re.search(
        r"are the ranks in separate containers\?\): needed \d{5,} bytes, free \d+", warning
    )


@pytest.mark.parametrize("backend", [deep("gloo"), deep("mpi")])
def test_read_only_memory_is_as_none(backend: str, plenty: dict[str, Any]) -> None:
    outcome = run(with_shm("ro", *job(TRAIN, FLAGS[backend])), timeout=100)
    (warning,) = expect_trained(outcome, plenty, backend)
    problem = (
        r"create shared memory in /dev/shm: needed \d{5,} bytes, free \d+: Read-only file system"
    )
    assert re.search(problem, warning), warning


@pytest.mark.parametrize("backend", [deep("gloo"), deep("mpi")])
def test_without_its_folder(backend: str, plenty: dict[str, Any], tmp_path: Path) -> None:
    outcome = run(without_shm(tmp_path, *job(TRAIN, FLAGS[backend])), timeout=100)
    (warning,) = expect_trained(outcome, plenty, backend)
    problem = r"create shared memory in /dev/shm: needed \d{5,} bytes, free 0: No such file or dir"
    assert re.search(problem, warning), warning


def train_on_hosts(folder: Path, options: tuple[str, str]) -> tuple[dict[str, Any], list[str]]:
    """What rank 0 of two hosts of two ranks reports, and the warnings about memory."""
    folder.mkdir()
    command = job(on_its_host(folder, *TRAIN), ("--gloo",), np=4)
    output = run(with_two_hosts(folder, options, *command), timeout=100).expect_success().output
    return report_of(output), warnings_of(output)


@pytest.mark.deep
def test_a_host_without_room_among_others(tmp_path: Path) -> None:
    wanted, warnings = train_on_hosts(tmp_path / "plenty", (PLENTY, PLENTY))
    assert warnings == []
    for number, options in enumerate([("size=1m", PLENTY), (PLENTY, "size=1m")]):
        report, warnings = train_on_hosts(tmp_path / str(number), options)
        assert report["losses"] == wanted["losses"]
        assert report["backend"] == "gloo"
        (warning,) = warnings
        assert f"the ranks of host host{number} reduce without shared memory" in warning
        assert re.search(r"needed \d{7} bytes, free \d{5,7} \(", warning), warning


@pytest.mark.deep
def test_noexec_is_no_matter(plenty: dict[str, Any]) -> None:
    options = f"{PLENTY},noexec,nosuid,nodev"
    outcome = run(with_shm(options, *job(TRAIN)), timeout=100)
    assert expect_trained(outcome, plenty, "local") == []


def in_own_containers(*rank_command: str) -> Outcome:
    """A job whose ranks do not see each other, but share /dev/shm; what is left there is shown."""
    command = with_shm(PLENTY, *with_listing(*job(with_own_pids(*rank_command))))
    return run(command, timeout=100)


def test_ranks_that_do_not_see_each_other_share_memory(plenty: dict[str, Any]) -> None:
    outcome = in_own_containers(*TRAIN)
    assert expect_trained(outcome, plenty, "local") == []
    assert "LEFT []" in outcome.output


# The rounds in which there is a name. The launcher ends the rank that waits for the dead one.
@pytest.mark.parametrize("number", [4, deep(5)])
def test_the_next_start_removes_the_name_of_killed_ranks(
    number: int, plenty: dict[str, Any]
) -> None:
    killed = job(with_own_pids(*KILLED, str(number)))
    command = two_minutes_apart(killed, job(with_own_pids(*TRAIN)))
    outcome = run(with_shm(PLENTY, *with_listing(*command)), timeout=100)
    assert re.search(r"NAMES \['mydist-[0-9a-f]{32}'\]", outcome.output), outcome.output
    assert re.search(r"CODE [1-9]", outcome.output), outcome.output
    assert expect_trained(outcome, plenty, "local") == []
    assert "LEFT []" in outcome.output, outcome.output
