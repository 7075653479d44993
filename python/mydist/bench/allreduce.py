"""The allreduce benchmark: mydist and its peers take turns, size by size and round by round.

One iteration: every rank rewrites its buffer, all meet at a barrier of the implementation under
test, then the allreduce is timed on every rank; the slowest rank counts. Results are checked.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

import mydist as md
from mydist import _C
from mydist.bench.peers import SeparatePeer
from mydist.bench.results import Row, allreduce_row


class Implementation(Protocol):
    """An allreduce that runs in the processes of this job."""

    name: str

    def allreduce(self, buffer: torch.Tensor) -> None:
        """Sums `buffer` over all ranks, in place. Blocking."""

    def barrier(self) -> None:
        """Returns when all ranks have called it."""


class Mydist:
    """The engine of this job."""

    def __init__(self) -> None:
        self.name = f"mydist-{_C.backend_name()}"

    def allreduce(self, buffer: torch.Tensor) -> None:
        """See Implementation."""
        md.allreduce_(buffer, op=md.Sum, name=f"bench.{buffer.numel()}")

    def barrier(self) -> None:
        """See Implementation."""
        md.barrier()


@dataclass(frozen=True)
class Plan:
    """What is measured. Sizes in bytes per rank; iterations are per round."""

    sizes: Sequence[int]
    dtype: torch.dtype
    rounds: int
    iterations: int | None = None

    def iterations_at(self, size_bytes: int) -> int:
        """As given, else as many as take well below a second."""
        return self.iterations or max(3, min(200, (16 << 20) // max(size_bytes, 1)))

    def elements(self, size_bytes: int) -> int:
        """How many elements have that size; at least one."""
        return max(1, size_bytes // self.dtype.itemsize)


def measure(
    plan: Plan, inside: Sequence[Implementation], outside: Sequence[SeparatePeer]
) -> list[Row]:
    """Runs everything. Collective over all ranks; rank 0 gets the rows, the others none.

    Args:
        plan: sizes, dtype and how often.
        inside: implementations that run in the processes of this job.
        outside: peers that rank 0 starts as jobs of their own, with as many ranks.
    """
    times: dict[tuple[int, str], list[float]] = {}
    for round_index in range(plan.rounds):
        for implementation in inside:
            for size in plan.sizes:
                found = run_size(plan, implementation, size)
                times.setdefault((size, implementation.name), []).extend(found)
        for peer in outside:
            if md.rank() == 0:
                for size, found in peer.run(plan.sizes, plan.iterations_at).items():
                    times.setdefault((size, peer.name), []).extend(found)
            # The others wait here, so that they leave the cores to the peer.
            md.barrier()
        if md.rank() == 0:
            print(f"round {round_index + 1} of {plan.rounds} done", flush=True)
    if md.rank() != 0:
        return []
    dtype = str(plan.dtype).removeprefix("torch.")
    return [
        allreduce_row(name, dtype, md.size(), size, times[size, name])
        for size in plan.sizes
        for name in [*(i.name for i in inside), *(peer.name for peer in outside)]
    ]


def run_size(plan: Plan, implementation: Implementation, size_bytes: int) -> list[float]:
    """Microseconds of the slowest rank, per iteration; two more before them warm up."""
    iterations = plan.iterations_at(size_bytes)
    buffer = torch.empty(plan.elements(size_bytes), dtype=plan.dtype)
    mine = []
    for iteration in range(-2, iterations):
        value = (md.rank() + iteration) % 5
        buffer.fill_(value)
        implementation.barrier()
        started = time.perf_counter()
        implementation.allreduce(buffer)
        elapsed = time.perf_counter() - started
        if iteration >= 0:
            mine.append(elapsed * 1e6)
        if iteration in (-2, iterations - 1):
            wanted = sum((rank + iteration) % 5 for rank in range(md.size()))
            if not bool((buffer == wanted).all()):
                raise RuntimeError(f"{implementation.name} gave a wrong sum at {size_bytes} bytes")
    slowest = md.allreduce(torch.tensor(mine, dtype=torch.float64), op=md.Max, name="bench.times")
    return [float(value) for value in slowest]
