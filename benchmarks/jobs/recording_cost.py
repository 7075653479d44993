"""A14: what the timeline, and reading the counters after every step, cost a training step.

    mydistrun -np 2 python -m benchmarks.jobs.recording_cost FILE

With and without come in pairs, so that a machine that changes its speed does so between pairs more
often than within one: turns of less than a second each for the timeline, whose switching thaws the
schedule, and single steps for the counters. A pair gives one ratio; the median of all is the
result, with an interval that holds its true value in 95 of 100 runs. mydist's counters are always
on; what can be on or off is reading them. MYDIST_FREEZE_AFTER=2 saves warming up for longer.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

import mydist as md
from benchmarks.jobs.figures import JobArguments, parse_arguments, times, write_figures
from mydist.bench.contest import Stopwatch, share
from mydist.bench.implementations import Mydist
from mydist.bench.models import make_workload
from mydist.bench.results import Measured, median

# Switching the timeline thaws the schedule and starts a thread, after which steps are longer for
# 0.2 s even if nothing is recorded.
_LEAST_WARM_UPS, _LEAST_WARM_UP_S = 100, 0.3
_MOST_WARM_UPS = 300
_AGREE_EVERY = 25  # Steps.


class Trainee:
    """A small network, whose short steps show more of what is added than long ones."""

    def __init__(self) -> None:
        self._workload = make_workload("conv", 8, md.rank())
        model = self._workload.model
        self._optimizer = md.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.001), named_parameters=model.named_parameters()
        )
        self._ranks = Mydist()

    def step(self) -> torch.Tensor:
        """One training step; the loss."""
        self._optimizer.zero_grad()
        output = self._workload.model(self._workload.inputs)
        loss = torch.nn.functional.cross_entropy(output, self._workload.labels)
        torch.autograd.backward(loss)
        self._optimizer.step()
        return loss

    def step_and_read(self) -> torch.Tensor:
        """A step after which the program looks at all counters."""
        loss = self.step()
        md.stats()
        return loss

    def turn(self, ways: Sequence[Callable[[], torch.Tensor]], count: int) -> list[Measured]:
        """The times of so many steps made in each of these ways, after some that warm up."""
        self._warm_up()
        watches = [Stopwatch() for _ in ways]
        for _ in range(count):
            for way, watch in zip(ways, watches, strict=True):
                self._ranks.barrier()
                watch.time(way)
        return [share(watch.measured) for watch in watches]

    def _warm_up(self) -> None:
        started, lasted, steps = time.perf_counter(), 0.0, 0
        while (
            steps < _LEAST_WARM_UPS
            or lasted < _LEAST_WARM_UP_S
            or (steps < _MOST_WARM_UPS and not self._ranks.is_settled())
        ):
            self._ranks.barrier()
            self.step()
            steps += 1
            if steps % _AGREE_EVERY == 0:  # All ranks go on, or none.
                mine = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
                lasted = md.allreduce(mine, op=md.Max, name="bench.lasted").item()


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """What the median of all such ratios lies in, with a probability of 95 %.

    Between two of the sorted ratios, whatever their distribution: the number of them that are below
    the true median is binomial.
    """
    ordered = sorted(ratios)
    middle, reach = len(ordered) / 2, 0.98 * math.sqrt(len(ordered))
    first, last = math.floor(middle - reach) - 1, math.ceil(middle + reach)
    return ordered[max(0, first)], ordered[min(len(ordered) - 1, last)]


@dataclass
class Comparison:
    """Times of steps without and with, and of each pair how many times longer "with" took."""

    off: Measured = field(default_factory=Measured)
    on: Measured = field(default_factory=Measured)
    ratios: list[float] = field(default_factory=list)

    def add(self, off: Measured, on: Measured) -> None:
        """A pair."""
        self.off.add(off)
        self.on.add(on)
        self.ratios.append(median(on.times_us) / median(off.times_us))

    def figures(self, name: str) -> dict[str, float]:
        """Times, and by how many percent steps are slower, with its interval."""
        low, high = interval(self.ratios)
        percents = {"percent": median(self.ratios), "low_percent": low, "high_percent": high}
        return {
            **times(f"{name}_off", self.off),
            **times(f"{name}_on", self.on),
            **{f"{name}_{key}": 100 * (value - 1) for key, value in percents.items()},
        }


def compare_timeline(trainee: Trainee, folder: Path, pairs: int, steps: int) -> Comparison:
    """Turns with and without it; each goes first equally often."""
    comparison = Comparison()
    for index in range(pairs):
        taken = {}
        for on in (False, True) if index % 2 == 0 else (True, False):
            if on:
                md.start_timeline(str(folder / f"timeline{index}.json"))
            taken[on] = trainee.turn([trainee.step], steps)[0]
            if on:
                md.stop_timeline()
        comparison.add(taken[False], taken[True])
    return comparison


def compare_counters(trainee: Trainee, pairs: int) -> Comparison:
    """Single steps in turns, after which the program reads the counters or not."""
    comparison = Comparison()
    off, on = trainee.turn([trainee.step, trainee.step_and_read], pairs)
    for without, reading in zip(off.times_us, on.times_us, strict=True):
        comparison.add(Measured([without]), Measured([reading]))
    return comparison


def measure(arguments: JobArguments, folder: Path) -> dict[str, float]:
    """Of the timeline and of reading the counters."""
    trainee = Trainee()
    steps = arguments.pick(100, 2)
    timeline = compare_timeline(trainee, folder, arguments.pick(40, 2), steps)
    counters = compare_counters(trainee, arguments.pick(1500, 2))
    return timeline.figures("timeline") | counters.figures("counters")


def main() -> None:
    """Measures and writes the figures."""
    arguments = parse_arguments()
    md.init()
    with tempfile.TemporaryDirectory(prefix="mydist-bench-") as folder:
        write_figures(arguments, measure(arguments, Path(folder)))
    md.shutdown()


if __name__ == "__main__":
    main()
