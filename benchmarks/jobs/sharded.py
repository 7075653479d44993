"""Sharded training: the AdamW kernel beside torch's, and whole steps of each way, by turns.

    mydistrun -np 2 python -m benchmarks.jobs sharded FILE

A step is backward without a computation to speak of, and step(). Each model has its own optimizer;
the processor time of a rank counts besides the wall time, as other programs disturb it less.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

import torch

import mydist as md
from mydist import _C
from mydist.bench.results import Measured, median

from .job import Figures, JobArguments, times

_ELEMENTS, _MILLIONS, _ROUNDS = 64_000_000, 100, 12
_WIDTH = 1000
# By name: the stage, 0 for DistributedOptimizer, and whether a host has one copy of the parameters.
_WAYS = {"0": (0, False), "1": (1, False), "2": (2, False), "2_shared": (2, True)}


def measure(arguments: JobArguments) -> Figures:
    """Times of both, and how many times longer the other takes."""
    torch.set_num_threads(1)
    rounds = arguments.pick(_ROUNDS, 2)
    figures = _kernel(arguments.pick(_ELEMENTS, 100_000), rounds)
    for fused in (False, True):
        figures |= _steps(arguments.pick(_MILLIONS, 2), rounds, fused)
    return figures


def _kernel(elements: int, rounds: int) -> Figures:
    parameter, gradient, first, second = (torch.rand(elements) for _ in range(4))
    leaf = torch.nn.Parameter(parameter.clone())
    leaf.grad = gradient
    count = iter(range(1, 10_000))
    numbers = (1e-3, 0.9, 0.999, 1e-8, 0.01)
    ways: dict[str, Callable[[], Any]] = {
        "adamw": lambda: _C.adamw_(parameter, gradient, first, second, next(count), *numbers),
        "torch_fused": torch.optim.AdamW([leaf], fused=True).step,
        "torch_foreach": torch.optim.AdamW([leaf], foreach=True).step,
    }
    found = {name: Measured() for name in ways}
    for index in range(rounds):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            if index > 0:
                found[name].times_us.append((time.perf_counter() - start) * 1e6)
    figures: Figures = {}
    for name, measured in found.items():
        figures |= times(name, measured)
    best = figures["adamw_min_us"]
    figures["adamw_gbps"] = 28 * elements / best / 1e3
    figures["fused_ratio"] = figures["torch_fused_min_us"] / best
    figures["foreach_ratio"] = figures["torch_foreach_min_us"] / best
    return figures


class _Run:
    """A model of square layers and its optimizer."""

    def __init__(self, stage: int, shares: bool, millions: int, fused: bool) -> None:
        torch.manual_seed(0)
        model = torch.nn.ModuleList(
            torch.nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(millions)
        )
        adam = torch.optim.AdamW(model.parameters(), fused=fused or None)
        self.parameters = list(model.parameters())
        self.optimizer: Any = (
            md.ShardedOptimizer(adam, model.named_parameters(), stage, share_parameters=shares)
            if stage
            else md.DistributedOptimizer(adam, model.named_parameters())
        )
        self.wall, self.processor = Measured(), Measured()

    def step(self, weights: torch.Tensor, counts: bool) -> None:
        md.barrier()
        start, before = time.perf_counter(), os.times()
        self.optimizer.zero_grad()
        for parameter in reversed(self.parameters):
            (parameter * weights).sum().backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        after = os.times()
        if counts:
            self.wall.times_us.append((time.perf_counter() - start) * 1e6)
            used = after.user + after.system - before.user - before.system
            self.processor.times_us.append(used * 1e6)


def _steps(millions: int, rounds: int, fused: bool) -> Figures:
    runs = {way: _Run(*facts, millions, fused) for way, facts in _WAYS.items()}
    weights = torch.rand(_WIDTH, _WIDTH)
    for index in range(rounds):
        for run in runs.values():
            run.step(weights, index > 1 or rounds == 2)
    kind = "_fused" if fused else ""
    figures: Figures = {}
    for way, run in runs.items():
        figures |= times(f"step_stage{way}{kind}", run.wall)
        figures[f"processor_stage{way}{kind}_us"] = median(run.processor.times_us)
        own, whole = f"step_stage{way}{kind}_us", f"step_stage0{kind}_us"
        if way != "0":
            figures[f"ratio_stage{way}{kind}"] = figures[own] / figures[whole]
    return figures
