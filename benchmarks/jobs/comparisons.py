"""A14 and G5: what the timeline, reading the counters, or the optimizer adds to a training step.

Steps without and with it come in pairs, so that a machine that changes its speed does so between
pairs more often than within one. A pair gives one ratio; the median of all is the result, with an
interval that holds its true value in 95 of 100 runs.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

import mydist as md
from mydist.bench.contest import Stopwatch, share
from mydist.bench.devices import synchronize
from mydist.bench.implementations import Mydist
from mydist.bench.models import Trainee, make_workload
from mydist.bench.results import Measured, median

from .job import Figures, JobArguments, times

# Switching the timeline thaws the schedule and starts a thread, after which steps are longer for
# 0.2 s even if nothing is recorded.
_LEAST_WARM_UPS, _LEAST_WARM_UP_S = 100, 0.3
_MOST_WARM_UPS = 300
_AGREE_EVERY = 25  # Steps.


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

    def figures(self, name: str) -> Figures:
        """Times, and by how many percent steps are slower, with its interval."""
        low, high = interval(self.ratios)
        percents = {"percent": median(self.ratios), "low_percent": low, "high_percent": high}
        return {
            **times(f"{name}_off", self.off),
            **times(f"{name}_on", self.on),
            **{f"{name}_{key}": 100 * (value - 1) for key, value in percents.items()},
        }


def _compare(pairs: Iterator[int], turn: Callable[[int, bool], Measured]) -> Comparison:
    """Turns without and with; each goes first equally often. Pairs below 0 do not count."""
    comparison = Comparison()
    for pair in pairs:
        taken = {on: turn(pair, on) for on in ((False, True), (True, False))[pair % 2]}
        if pair >= 0:
            comparison.add(taken[False], taken[True])
    return comparison


class _Recorded:
    """Training of a small network, whose short steps show more of what is added than long ones."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        workload = make_workload("conv", 8, md.rank())
        self._trainee = Trainee(workload, distributed=True, momentum=0.0)
        self._ranks = Mydist()

    def step_and_read(self) -> torch.Tensor:
        """A step after which the program looks at all counters."""
        loss = self._trainee.step()
        md.stats()
        return loss

    def steps(self, count: int, *ways: Callable[[], torch.Tensor]) -> list[Measured]:
        """The times of so many steps made in each of these ways, after some that warm up."""
        self._warm_up()
        watches = [Stopwatch() for _ in ways]
        for _ in range(count):
            for way, watch in zip(ways, watches, strict=True):
                self._ranks.barrier()
                watch.time(way)
        return [share(watch.measured) for watch in watches]

    def turn(self, count: int, pair: int, on: bool) -> Measured:
        """So many steps, with the timeline or without."""
        if on:
            md.start_timeline(str(self._folder / f"timeline{pair}.json"))
        (measured,) = self.steps(count, self._trainee.step)
        if on:
            md.stop_timeline()
        return measured

    def compare_counters(self, pairs: int) -> Comparison:
        """Single steps by turns, after which the program reads the counters or not."""
        comparison = Comparison()
        off, on = self.steps(pairs, self._trainee.step, self.step_and_read)
        for without, reading in zip(off.times_us, on.times_us, strict=True):
            comparison.add(Measured([without]), Measured([reading]))
        return comparison

    def _warm_up(self) -> None:
        started, lasted, steps = time.perf_counter(), 0.0, 0
        while (
            steps < _LEAST_WARM_UPS
            or lasted < _LEAST_WARM_UP_S
            or (steps < _MOST_WARM_UPS and not self._ranks.is_settled())
        ):
            self._ranks.barrier()
            self._trainee.step()
            steps += 1
            if steps % _AGREE_EVERY == 0:  # All ranks go on, or none.
                mine = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
                lasted = md.allreduce(mine, op=md.Max, name="bench.lasted").item()


def measure_recording(arguments: JobArguments) -> Figures:
    """A14: turns of less than a second for the timeline, single steps for the counters.

    mydist's counters are always on; what a program can leave out is reading them.
    """
    with tempfile.TemporaryDirectory(prefix="mydist-bench-") as folder:
        recorded = _Recorded(folder)
        pairs = iter(range(arguments.pick(40, 2)))
        timeline = _compare(pairs, partial(recorded.turn, arguments.pick(100, 2)))
        counters = recorded.compare_counters(arguments.pick(1500, 2))
    return timeline.figures("timeline") | counters.figures("counters")


@dataclass(frozen=True)
class _Plan:
    """What is trained, for how long; a pair is two turns of so many steps."""

    model: str
    batch: int
    steps: int
    pairs: int
    warm_ups: int = 3  # Pairs: cuDNN tries its algorithms, momentum is allocated.


# ResNet-50 keeps a GPU busy. Of the small GPT the host takes most of the time, so it shows most of
# what is added there.
_PLANS = (_Plan("resnet50", 32, 4, 40), _Plan("gpt", 16, 20, 60))


def _compare_optimizers(plan: _Plan, device: torch.device) -> Comparison:
    """The plain optimizer and a DistributedOptimizer around it.

    A turn ends when the GPU is done with it: until then the host may run ahead, as in training.
    """
    trainees = [
        Trainee(make_workload(plan.model, plan.batch, md.rank()).to(device), distributed)
        for distributed in (False, True)
    ]

    def steps(trainee: Trainee) -> torch.Tensor:
        for _ in range(plan.steps):
            loss = trainee.step()
        synchronize(device)
        return loss

    def turn(_: int, on: bool) -> Measured:
        watch = Stopwatch()
        watch.time(partial(steps, trainees[on]))
        return watch.measured

    return _compare(iter(range(-plan.warm_ups, plan.pairs)), turn)


def measure_overhead(arguments: JobArguments) -> Figures:
    """G5: what a job of one rank adds to a step of each model on a GPU."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    figures: Figures = {}
    for usual in _PLANS:
        plan = _Plan(usual.model, 1, 1, 1, 0) if arguments.smoke else usual
        figures |= _compare_optimizers(plan, arguments.device).figures(plan.model)
    return figures
