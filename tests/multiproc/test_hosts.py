"""Ranks on several (pretended) hosts: results, and the bytes that pass between hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deep import deep

from multiproc.job import WORKERS, launch

ACROSS = str(WORKERS / "across_hosts.py")
TENSOR = 4 * (3 << 18)  # Bytes of what across_hosts.py reduces.


def sent_by_host(np: int, backend: str, flags: list[str]) -> dict[str, list[int]]:
    """Bytes that each host, with two ranks or what is left, sent during each collective."""
    env = {"TEST_RANKS_PER_HOST": "2"}
    output = launch(np, backend, ACROSS, env=env, flags=flags).expect_success().output
    (line,) = [line for line in output.splitlines() if "REPORT " in line]
    ranks = json.loads(line.partition("REPORT ")[2])
    return {
        name: [sum(rank[name] for rank in ranks[first : first + 2]) for first in range(0, np, 2)]
        for name in ranks[0]
    }


@pytest.mark.parametrize("backend", ["gloo", deep("mpi")])
def test_hosts_send_what_the_formula_says(backend: str) -> None:
    sent = sent_by_host(4, backend, ["--shared-memory"])
    assert sent == {
        "float32": [TENSOR, TENSOR],
        "small": [44, 44],
        "odd": [8 * 99991, 8 * 99991],
        "bfloat16": [TENSOR // 4 * 3, TENSOR // 4 * 3],
        "broadcast": [TENSOR, 0],
        "allgather": [2 * TENSOR, 2 * TENSOR],
        "reducescatter": [2 * TENSOR, 2 * TENSOR],
    }


@pytest.mark.parametrize("backend", ["gloo"])
def test_uneven_hosts_do_so_too(backend: str) -> None:
    sent = sent_by_host(5, backend, ["--shared-memory"])
    # Three hosts: 2 n (N - 1) / N, and for a broadcast each host's share passed on.
    assert sent["float32"] == [TENSOR // 3 * 4] * 3
    assert sum(sent["broadcast"]) == 2 * TENSOR
    assert sent["allgather"] == [4 * TENSOR, 4 * TENSOR, 2 * TENSOR]
    assert sent["reducescatter"] == [3 * TENSOR, 3 * TENSOR, 4 * TENSOR]


@pytest.mark.parametrize("backend", ["gloo"])
@pytest.mark.parametrize("flags", [["--no-hierarchical-allreduce", "--shared-memory"], deep([])])
def test_all_ranks_at_once_send_more(backend: str, flags: list[str]) -> None:
    sent = sent_by_host(4, backend, flags)
    # Each rank sends a quarter of its tensor, and its quarter of the sum, to two ranks elsewhere.
    assert sent["float32"] == [2 * TENSOR, 2 * TENSOR]
    assert sent["allgather"] == [4 * TENSOR, 4 * TENSOR]


@pytest.mark.deep
@pytest.mark.parametrize("backend", ["gloo"])
def test_hosts_without_shared_memory_can_reduce_first(backend: str) -> None:
    sent = sent_by_host(4, backend, ["--hierarchical-allreduce"])
    assert sent["float32"] == [TENSOR, TENSOR]


@pytest.mark.parametrize("victim", [0, deep(2), deep(3)])
def test_a_death_ends_a_frozen_schedule_on_every_host(victim: int, tmp_path: Path) -> None:
    """Of the root, of the other host's leader, and of a rank that leads nobody."""
    env = {
        "MYDIST_SHARED_MEMORY": "1",
        "MYDIST_FREEZE_AFTER": "2",
        "MYDIST_STALL_WARNING_SECONDS": "600",
        "TEST_RANKS_PER_HOST": "2",
    }
    worker = str(WORKERS / "frozen_until_killed.py")
    outcome = launch(4, "gloo", worker, str(victim), str(tmp_path), env=env)
    assert outcome.code == 137, outcome.output
    for rank in {0, 1, 2, 3} - {victim}:
        learned = (tmp_path / f"rank{rank}.txt").read_text()
        assert f"rank {victim}" in learned and "Peer" in learned, learned
