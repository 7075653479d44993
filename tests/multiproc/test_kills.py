"""kill -9 of any rank at any moment: the others say who it was, and nothing is left behind."""

from __future__ import annotations

import mmap
import os
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from deep import deep

from multiproc.arena_memory import arenas_held_by
from multiproc.job import WORKERS, Outcome, launch
from multiproc.leftovers import held_arenas, processes_with, temporary_files, unowned_arenas

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

DOOMED = str(WORKERS / "doomed.py")
# From how many moments one is chosen, somewhat fewer than there are: a job in which nobody is
# killed fails.
MOMENTS = {"init": 1000, "work": 40, "train": 52, "shutdown": 16}
ROUNDS = ["init"] * 7 + ["work"] * 8 + ["train"] * 3


@pytest.fixture
def nothing_is_left(tmp_path: Path) -> Iterator[None]:
    before = unowned_arenas()
    (tmp_path / "tmp").mkdir()
    yield
    assert unowned_arenas() - before == set()
    assert held_arenas(arenas_of(tmp_path)) == {}
    assert temporary_files(tmp_path / "tmp") == []
    assert processes_with(str(tmp_path)) == []


def run_doomed(
    np: int, backend: str, folder: Path, victim: int, moment: tuple[str, int, int], **env: str
) -> tuple[Outcome, dict[int, str]]:
    """How the job ended, and what each rank reported."""
    own = {"TMPDIR": str(folder / "tmp"), "MYDIST_SHUTDOWN_SECONDS": "1", **env}
    arguments = [DOOMED, str(folder), str(victim), *map(str, moment)]
    outcome = launch(np, backend, *arguments, timeout=60, env=own)
    reports = {
        rank: path.read_text()
        for rank in range(np)
        if (path := folder / f"rank{rank}.txt").exists()
    }
    return outcome, reports


def arenas_of(folder: Path) -> set[str]:
    """What the ranks of a job, or those that have come so far, say that they share."""
    return {name for path in folder.glob("arena*.txt") for name in path.read_text().splitlines()}


def expect_killed(outcome: Outcome, victim: int) -> None:
    assert outcome.code == 137, outcome.output
    report = outcome.output.partition("mydistrun: ")[2]
    assert report.startswith(f"rank {victim} ") and "signal 9" in report, outcome.output


# An ordinary run has the first of each phase.
@pytest.mark.parametrize(
    "number", [n if n == ROUNDS.index(phase) else deep(n) for n, phase in enumerate(ROUNDS)]
)
@pytest.mark.usefixtures("nothing_is_left")
def test_a_rank_is_killed(number: int, tmp_path: Path) -> None:
    chance = random.Random(number)
    expect_survived(ROUNDS[number], chance.randrange(3), chance, tmp_path)


@pytest.mark.parametrize("victim", [0, deep(1), deep(2)])
@pytest.mark.usefixtures("nothing_is_left")
def test_a_rank_is_killed_while_it_shuts_down(victim: int, tmp_path: Path) -> None:
    expect_survived("shutdown", victim, random.Random(victim), tmp_path)


@pytest.mark.usefixtures("nothing_is_left")
def test_a_rank_is_killed_at_a_moment_not_tried_before(tmp_path: Path) -> None:
    seed = time.time_ns()
    print(f"random.Random({seed})")  # With which a failure can be repeated.
    chance = random.Random(seed)
    expect_survived(chance.choice(list(MOMENTS)), chance.randrange(3), chance, tmp_path)


def expect_survived(phase: str, victim: int, chance: random.Random, tmp_path: Path) -> None:
    """One rank of three is killed in this phase."""
    moment = (phase, chance.randint(1, MOMENTS[phase]), chance.randrange(200_000))
    outcome, reports = run_doomed(3, "local", tmp_path, victim, moment)
    expect_killed(outcome, victim)
    assert len(arenas_of(tmp_path)) == 1 or phase == "init"
    # Those that wait for it in init() are ended by the launcher; a rank that has come to the end of
    # its work does not need the others any more.
    others = {0, 1, 2} - {victim}
    assert set(reports) == others or phase == "init", (moment, outcome.output)
    for text in reports.values():
        named = f"rank {victim} " in text
        assert named or (phase == "shutdown" and text == "finished"), (moment, text)


# Its ranks hear of it in shared memory, and end their connections as well.
@pytest.mark.parametrize("victim", [deep(0), 1, deep(2)])
@pytest.mark.usefixtures("nothing_is_left")
def test_a_rank_is_killed_on_one_host_of_gloo(victim: int, tmp_path: Path) -> None:
    moment = ("work", 20 + victim, 10_000 * victim)
    outcome, reports = run_doomed(3, "gloo", tmp_path, victim, moment, MYDIST_SHARED_MEMORY="1")
    expect_killed(outcome, victim)
    assert len(arenas_of(tmp_path)) == 1
    assert set(reports) == {0, 1, 2} - {victim}, outcome.output
    for text in reports.values():
        assert "PeerLostError" in text and f"rank {victim} " in text, text


# mpirun takes the others down, perhaps before they can report.
@pytest.mark.parametrize("backend", ["mpi"])
@pytest.mark.parametrize("victim", [deep(0), deep(2)])
@pytest.mark.usefixtures("nothing_is_left")
def test_a_rank_is_killed_on_one_host_of_mpi(victim: int, backend: str, tmp_path: Path) -> None:
    moment = ("work", 20 + victim, 10_000 * victim)
    outcome, reports = run_doomed(3, backend, tmp_path, victim, moment, MYDIST_SHARED_MEMORY="1")
    assert outcome.code != 0, outcome.output
    assert f"rank {victim} " in outcome.output and "signal 9" in outcome.output, outcome.output
    assert len(arenas_of(tmp_path)) == 1
    assert victim not in reports
    for text in reports.values():
        assert "PeerLostError" in text, text


@pytest.mark.parametrize("victim", [0, deep(1), deep(3)])
@pytest.mark.usefixtures("nothing_is_left")
def test_a_rank_is_killed_in_a_hierarchy(victim: int, tmp_path: Path) -> None:
    # The launcher would end the others after two seconds.
    moment = ("work", 30 + victim, 10_000 * victim)
    hosts = {"MYDIST_SHARED_MEMORY": "1", "TEST_RANKS_PER_HOST": "2"}
    outcome, reports = run_doomed(4, "gloo", tmp_path, victim, moment, **hosts)
    expect_killed(outcome, victim)
    assert len(arenas_of(tmp_path)) == 2  # One on each host.
    assert set(reports) == {0, 1, 2, 3} - {victim}, outcome.output
    for text in reports.values():
        assert "PeerLostError" in text, text
        assert f"rank {victim} " in text, reports


def test_who_holds_an_arena_is_found() -> None:
    """Or the tests above find nobody, whatever happens."""
    with tempfile.TemporaryFile(dir="/dev/shm") as file:  # It has no name.
        file.truncate(4096)
        (name,) = arenas_held_by("self")
        mapped = mmap.mmap(file.fileno(), 4096)
        assert held_arenas({name}) == {str(os.getpid()): {name}}
    # mmap keeps a descriptor of its own.
    assert held_arenas({name}) == {str(os.getpid()): {name}}
    mapped.close()
    assert held_arenas({name}) == {}
