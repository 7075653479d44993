"""Steps that do not repeat the one before: nothing is lost, swapped or reduced twice."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

import torch

import mydist
from multiproc.checks.freezing import SETTLING_STEPS
from multiproc.meeting import meet
from multiproc.registry import check

NAMES = ("a", "b", "c", "extra")


def contribution(rank: int, step: int, name: str) -> torch.Tensor:
    """Differs from any other rank's, step's and name's; sums of some are exact in float32."""
    weight = 1000 * (NAMES.index(name) + 1)
    return torch.arange(1.0, 4.0) * (weight * (rank + 1)) + step


def total(step: int, name: str) -> torch.Tensor:
    return torch.stack([contribution(r, step, name) for r in range(mydist.size())]).sum(dim=0)


def names_of(step: int, rank: int) -> list[str]:
    names = ["a", "b", "c"]
    if step % 97 == 50:
        names.insert(1, "extra")
    if step % 89 == 40 and rank == 0:
        names.reverse()
    if step % 101 == 30:
        names.remove("b")
    return names


@check(min_size=2)
def an_async_step_with_deviations_is_right() -> None:
    rank = mydist.rank()
    frozen = mydist.stats()["frozen_steps"]
    for step in range(400):
        names = names_of(step, rank)
        handles = [
            mydist.allreduce_async(contribution(rank, step, name), name=name, op=mydist.Sum)
            for name in names
        ]
        for name, handle in zip(names, handles, strict=True):
            result, expected = mydist.synchronize(handle), total(step, name)
            assert torch.equal(result, expected), (step, name, result, expected)
    stats = mydist.stats()
    assert stats["thaws"] > 0 and stats["frozen_steps"] > frozen, stats


@check(min_size=2)
def a_synchronous_step_with_deviations_is_right() -> None:
    """Also with a shape that changes, and other operations in between."""
    rank, size = mydist.rank(), mydist.size()
    for step in range(300):
        for name in ("a", "b"):
            mine = contribution(rank, step, name)
            expected = total(step, name)
            if step % 83 == 60:
                mine, expected = mine[:2], expected[:2]
            result = mydist.allreduce(mine, name=f"sync.{name}", op=mydist.Sum)
            assert torch.equal(result, expected), (step, name, result, expected)
        if step % 71 == 35:
            rows = mydist.allgather(contribution(rank, step, "c"), name="sync.rows")
            everyone = [contribution(r, step, "c") for r in range(size)]
            assert torch.equal(rows, torch.cat(everyone)), (step, rows)


@check(min_size=2)
def unnamed_collectives_in_flight_meet_those_of_the_same_number() -> None:
    """Also when some ranks have submitted all of them and others one, and a step has one more."""
    rank, size = mydist.rank(), mydist.size()
    frozen = mydist.stats()["frozen_steps"]
    for step in range(400):
        count = 3 + (step % 97 == 50)
        mine = [torch.full((2,), float(rank + 10 * step + call)) for call in range(count)]
        if (rank + step) % 3 == 0:
            results = [mydist.allreduce(tensor, op=mydist.Sum) for tensor in mine]
        else:
            handles = [mydist.allreduce_async(tensor, op=mydist.Sum) for tensor in mine]
            results = [mydist.synchronize(handle) for handle in handles]
        for call, result in enumerate(results):
            expected = float(size * (size - 1) // 2 + size * (10 * step + call))
            assert result.tolist() == [expected] * 2, (step, call, result)
    stats = mydist.stats()
    assert stats["thaws"] > 0 and stats["frozen_steps"] > frozen, stats


@check(min_size=2)
def who_has_waited_for_long_is_served_soon() -> None:
    """A step lacks a tensor; the other ranks come late to it, and wait for nothing themselves."""

    def reduce(name: str) -> int:
        return mydist.allreduce_async(torch.ones(4), op=mydist.Sum, name=name)

    with tempfile.TemporaryDirectory() as own:
        directory = Path(mydist.broadcast_object(own, root_rank=0))
        frozen = mydist.stats()["frozen_steps"]
        for _ in range(SETTLING_STEPS):
            for handle in [reduce(name) for name in ("first", "second", "third")]:
                mydist.synchronize(handle)
        assert mydist.stats()["frozen_steps"] > frozen
        started = time.monotonic()
        if mydist.rank() != 0:
            threading.Event().wait(0.5)
        first, third = reduce("first"), reduce("third")
        if mydist.rank() == 0:
            assert torch.equal(mydist.synchronize(third), torch.full((4,), float(mydist.size())))
        waited = time.monotonic() - started
        meet(directory, "served")
        if mydist.rank() != 0:
            mydist.synchronize(third)
        mydist.synchronize(first)
        mydist.barrier()
    assert waited < 30, (
        waited
    )  # As if nobody waited it would be a tenth of the stall warning: 60 s.
