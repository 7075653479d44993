"""Contest: mydist and its peers take turns, size by size and round by round.

One iteration: every rank rewrites its tensor, all meet at a barrier of the implementation under
test, then the call is timed on every rank; the slowest rank counts. Every result is checked, once
all ranks are done: else the first would take the cores from those that are still timed.
In each round all ranks at once also multiply a tensor by a constant, in place: T_rw, the time that
the memory takes to give and take the bytes of the operation, which nothing can beat.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import torch

import mydist as md
from mydist.bench.implementations import Implementation, Mydist
from mydist.bench.peers import SeparatePeer, Times
from mydist.bench.problem import Plan, Problem
from mydist.bench.results import Measured, Row, Subject, make_row, median
from mydist.job.bootstrap import launched_as

_WARM_UPS = 2
# Of an implementation that has not settled: no more of them, and no more bytes.
_MOST_WARM_UPS = 1000
_MOST_WARM_UP_BYTES = 64 << 20
# Below this the time of a call without any work would be most of T_rw.
_LEAST_BOUND_BYTES = 64 << 10
# Names an implementation whose results are made wrong, for the test that this is noticed.
_FALSIFIED = os.environ.get("BENCH_FALSIFY")


class Stopwatch:
    """Times calls of this rank, with what they cost: CPU time and context switches."""

    def __init__(self, warm_ups: int = 0) -> None:
        """Of the first `warm_ups` calls nothing is counted."""
        self.measured = Measured()
        self._warm_ups = warm_ups

    def time(self, call: Callable[[], torch.Tensor]) -> torch.Tensor:
        """What `call` returns."""
        if self._warm_ups > 0:
            self._warm_ups -= 1
            return call()
        usage, cpu = resource.getrusage(resource.RUSAGE_SELF), time.process_time()
        started = time.perf_counter()
        output = call()
        elapsed = time.perf_counter() - started
        after = resource.getrusage(resource.RUSAGE_SELF)
        self.measured.times_us.append(elapsed * 1e6)
        self.measured.cpu_seconds += time.process_time() - cpu
        self.measured.context_switches += (
            after.ru_nvcsw + after.ru_nivcsw - usage.ru_nvcsw - usage.ru_nivcsw
        )
        return output


def share(mine: Measured) -> Measured:
    """Of all ranks: times of the slowest, means of the rest. Collective."""
    times = torch.tensor(mine.times_us, dtype=torch.float64)
    costs = torch.tensor([mine.cpu_seconds, mine.context_switches], dtype=torch.float64)
    slowest = md.allreduce(times, op=md.Max, name="bench.times")
    cpu, switches = md.allreduce(costs, op=md.Average, name="bench.costs").tolist()
    return Measured(slowest.tolist(), cpu, switches)


def run_size(plan: Plan, implementation: Implementation, size_bytes: int) -> Measured:
    """One round at one size, warmed up and settled. Collective. Raises WrongResult."""
    problem = Problem(plan.shape(size_bytes, md.rank(), md.size()))
    call = implementation.prepare(problem)
    # At most. A call of megabytes costs much the same before and after.
    most = max(_WARM_UPS, min(_MOST_WARM_UPS, _MOST_WARM_UP_BYTES // max(size_bytes, 1)))

    def iterate(watch: Stopwatch, iteration: int) -> None:
        problem.fill(iteration)
        implementation.barrier()
        output = watch.time(call)
        implementation.await_others()
        if is_falsified(implementation.name):
            output[output.numel() // 2] += 1
        problem.check(output, iteration, implementation.name)

    warm_ups = 0
    while warm_ups < _WARM_UPS or (warm_ups < most and not implementation.is_settled()):
        iterate(Stopwatch(), warm_ups)
        warm_ups += 1
    watch = Stopwatch()
    for iteration in range(plan.iterations_at(size_bytes)):
        iterate(watch, warm_ups + iteration)
    return share(watch.measured)


def is_falsified(name: str) -> bool:
    """Whether this rank is to make results of that implementation wrong."""
    return name == _FALSIFIED and md.rank() == md.size() - 1


def memory_pass(plan: Plan, size_bytes: int) -> Measured:
    """T_rw of one round: an in-place pass that loads and stores as many bytes. Collective."""
    count = _touched_bytes(plan, size_bytes) // 2 // torch.float32.itemsize
    data, watch, ranks = torch.ones(max(1, count)), Stopwatch(_WARM_UPS), Mydist()
    for iteration in range(_WARM_UPS + plan.iterations_at(size_bytes)):
        data.fill_(iteration)
        ranks.barrier()
        watch.time(lambda: data.mul_(1.5))
        ranks.await_others()
    return share(watch.measured)


def measure(
    plan: Plan, inside: Sequence[Implementation], outside: Sequence[SeparatePeer]
) -> list[Row]:
    """Runs everything. Collective over all ranks; rank 0 gets the rows, the others none.

    `inside` run in the processes of this job; `outside` are started by rank 0 as jobs of their own,
    the other ranks have none. Raises WrongResult when a result was wrong on this rank.
    """
    found: Times = {}
    bounds: Times = {}
    for round_index in range(plan.rounds):
        for size in plan.sizes:
            if _touched_bytes(plan, size) >= 2 * _LEAST_BOUND_BYTES:
                add(bounds, {("bound", size): memory_pass(plan, size)})
            for implementation in inside:
                add(found, {(implementation.name, size): run_size(plan, implementation, size)})
        for peer in outside:
            add(found, peer.run())
        # The other ranks wait here, so that they leave the cores to the peers.
        md.barrier()
        if md.rank() == 0:
            print(f"round {round_index + 1} of {plan.rounds} done", flush=True)
    return make_rows(plan, md.size(), found, bounds) if md.rank() == 0 else []


def add(total: Times, more: Mapping[tuple[str, int], Measured]) -> None:
    """Another round."""
    for key, measured in more.items():
        total.setdefault(key, Measured()).add(measured)


def make_rows(plan: Plan, ranks: int, found: Times, bounds: Times) -> list[Row]:
    """By size, of all that was found, next to the bounds of the same run."""
    rows = []
    for size in plan.sizes:
        passes = bounds.get(("bound", size))
        bound = None if passes is None else median(passes.times_us)
        for (name, of_size), measured in found.items():
            if of_size == size:
                dtype = str(plan.dtype).removeprefix("torch.")
                subject = Subject(plan.op, name, dtype, ranks, size)
                rows.append(make_row(subject, measured, bound))
    return rows


def _touched_bytes(plan: Plan, size_bytes: int) -> int:
    return plan.shape(size_bytes, md.rank(), md.size()).touched_bytes


def pretend_hosts(count: int) -> None:
    """Must come before init; ranks in blocks of equal length as far as possible."""
    place = launched_as()
    if place is None:
        sys.exit(
            "mydist.bench: --fake-hosts needs a launcher that tells ranks: mydistrun or mpirun"
        )
    rank, size = place
    os.environ["MYDIST_HOST_ID"] = f"fake-host-{rank * count // size}"


def pin_to_core(one_host: bool) -> None:
    """Restricts the calling thread to one core, if every rank of the host can have its own.

    Threads that were started before go where there is room. `one_host`: whatever mydist was told.
    """
    take_core(*((md.rank(), md.size()) if one_host else (md.local_rank(), md.local_size())))


def take_core(index: int, count: int) -> None:
    """Restricts the calling thread, and those it starts from now on, to core `index` of `count`.

    Does nothing where there are fewer cores.
    """
    cores = sorted(os.sched_getaffinity(0))
    if count <= len(cores):
        os.sched_setaffinity(0, {cores[index]})
