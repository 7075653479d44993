"""10,000 training steps, and random operations: no growth, and no wrong result."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import pytest
from deep import deep

from multiproc.job import WORKERS, launcher_command, run
from multiproc.soak import LAYOUTS, Layout, not_flat, outcome_in

SOAK = str(WORKERS / "soak.py")

# After 1,000 warm steps; the other 9,000 may add this much to a rank. A leak of 16 bytes a step
# makes 144,000 bytes, and 288,000 of malloc, whose smallest piece is 32 bytes; without one, malloc
# was seen to differ by 6,000 bytes and resident memory, which grows by pages, by 41,000. The bound
# is half of what is to be found. An object leaked in Python is one block or more a step.
BOUNDS = {
    "malloc_bytes": 72_000,
    "private_bytes": 144_000,
    "shared_bytes": 0,
    "arena_bytes": 0,
    "python_blocks": 1_000,
    "descriptors": 0,
    "threads": 0,
    "shared_mappings": 0,
}


# So that what grows up to a bound is full after the warm steps. Each table that is made ends a
# freeze; ranks negotiate until the next one, and each call without a name takes 300 bytes in the
# response cache, whose 1,024 places fill up in 4,000 steps. What a thread keeps of freed memory
# counts as taken for malloc.
FULL = {"MYDIST_CACHE_CAPACITY": "64", "GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}


def growth(command: list[str], env: Mapping[str, str]) -> list[dict[str, int]]:
    env = {"MYDIST_BUCKET_SIZE_MB": "0.25", **env}
    output = run(command, timeout=300, env=env).expect_success().output
    (line,) = [line for line in output.splitlines() if "GROWTH " in line]
    ranks: list[dict[str, int]] = json.loads(line.partition("GROWTH ")[2])
    return ranks


# Through shared memory, over sockets, and through memory inside two hosts and sockets between them.
@pytest.mark.parametrize(
    ("np", "backend", "env", "options"),
    [
        deep(2, "local", {}, ()),
        deep(2, "local", {}, ("--varying",)),
        deep(2, "gloo", {"MYDIST_SHARED_MEMORY": "0"}, ()),
        deep(2, "mpi", {"MYDIST_SHARED_MEMORY": "0"}, ("--varying",)),
        deep(2, "local", FULL, ("--tables",)),
        deep(2, "gloo", {"MYDIST_SHARED_MEMORY": "0", **FULL}, ("--tables",)),
        deep(3, "gloo", {"TEST_RANKS_PER_HOST": "2"}, ()),
    ],
)
def test_nothing_grows(np: int, backend: str, env: dict[str, str], options: tuple[str]) -> None:
    ranks = growth(launcher_command(np, backend, SOAK, *options), env)
    assert len(ranks) == np
    for rank in ranks:
        assert {name: rank[name] for name, bound in BOUNDS.items() if rank[name] > bound} == {}


@pytest.mark.deep
def test_sixteen_bytes_a_step_would_be_noticed() -> None:
    for rank in growth(launcher_command(2, "local", SOAK, "--leak", "16"), {}):
        assert rank["malloc_bytes"] > 2 * BOUNDS["malloc_bytes"], rank


# Each way the ranks may lie in one run or another; `make soak` goes on for as long as asked.
@pytest.mark.turns(3)
@pytest.mark.parametrize("layout", [pytest.param(each, id=each.name) for each in LAYOUTS])
def test_random_operations_are_right(layout: Layout, request: pytest.FixtureRequest) -> None:
    seed = 1 + (request.config.getoption("--turn") or 0)  # Another program with each commit.
    command = layout.command(seed, "--steps", "400")
    outcome = outcome_in(run(command, timeout=300, env=layout.env).expect_success().output)
    assert outcome["steps"] >= 400
    # Of what is rare, too.
    assert outcome["counts"].keys() >= {"join", "sets", "mismatch", "pair", "grouped_allreduce"}
    assert not_flat(outcome) == [{}] * layout.np


def test_a_wrong_result_ends_the_soak_with_its_seed() -> None:
    command = LAYOUTS[0].command(7, "--steps", "50", "--wrong", "20")
    outcome = run(command, timeout=120)
    assert outcome.code != 0
    (step,) = set(re.findall(r"soak: failed with seed 7 in step (\d+)", outcome.output))
    assert 20 <= int(step) < 50
