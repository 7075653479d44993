"""10,000 training steps: no growth in memory, descriptors or shared memory."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from deep import deep

from multiproc.job import WORKERS, launcher_command, run

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
