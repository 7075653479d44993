"""A8: from submit to done, one tensor of 4 bytes that every rank has seen before.

    mydistrun -np 2 python -m benchmarks.jobs.latency FILE

First with the caller waiting, then through the engine's thread: the caller only polls. Not by
turns, for each is to be a program that does one thing, whose schedule comes to rest. A rank is
pinned as a whole: the scheduler leaves a thread that it wakes where it was last, which may as well
be the core of another rank.
"""

from __future__ import annotations

import os

import torch

import mydist as md
from benchmarks.jobs.figures import JobArguments, parse_arguments, run_job, times
from mydist.bench.contest import Stopwatch, share, take_core
from mydist.bench.problem import WrongResult
from mydist.bench.results import Measured

_WARM_UPS = 100


def wait_for(data: torch.Tensor) -> torch.Tensor:
    """The caller waits at once."""
    return md.allreduce_(data, op=md.Sum, name="latency.wait")


def poll_for(data: torch.Tensor) -> torch.Tensor:
    """The caller looks whether it is done, and lets others run in between."""
    handle = md.allreduce_async_(data, op=md.Sum, name="latency.poll")
    while not md.poll(handle):
        os.sched_yield()
    result = md.synchronize(handle)
    assert isinstance(result, torch.Tensor)
    return result


def measure(arguments: JobArguments) -> dict[str, float]:
    """Medians and 99th percentiles in microseconds."""
    data = torch.zeros(1)
    figures: dict[str, float] = {}
    found = {"caller": Measured(), "thread": Measured()}
    for name, call in (("caller", wait_for), ("thread", poll_for)):
        watch = Stopwatch()
        for index in range(_WARM_UPS + arguments.pick(1500, 3)):
            if index == _WARM_UPS:
                watch = Stopwatch()
            data.fill_(index)
            watch.time(lambda call=call: call(data))  # type: ignore[misc]
            if data.item() != index * md.size():
                raise WrongResult(f"{name}: got {data.item()}, expected {index * md.size()}")
        found[name].add(share(watch.measured))
    for name, measured in found.items():
        figures |= times(name, measured)
        figures[f"{name}_switches"] = measured.context_switches / len(measured.times_us)
    return figures


def main() -> None:
    """Measures and writes the figures."""
    arguments = parse_arguments()
    take_core(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    run_job(arguments, measure)


if __name__ == "__main__":
    main()
