"""S7: wall time to a target loss with transient stragglers, Sync against SSP(3).

A step is a pause, as if a processor worked; one in twenty takes eight times as long. The pauses
are the same for both. Workers are processes, more than there are cores: they sleep.
"""

from __future__ import annotations

import time

import torch

import mydist as md
from mydist.bench.results import median

from .job import Figures, JobArguments

_STEP_S, _SLOW_TIMES, _SLOW_SHARE = 0.02, 8, 0.05
_STEPS, _ROUNDS, _STALENESS = 100, 5, 3
_WIDTH, _SAMPLES, _LR = 32, 256, 0.1
# Of the loss at the start.
_TARGET = 0.01


class _Problem:
    """Least squares; each worker has its own samples of one truth."""

    def __init__(self) -> None:
        everywhere = torch.Generator().manual_seed(0)
        truth = torch.randn(_WIDTH, generator=everywhere)
        own = torch.Generator().manual_seed(1 + md.rank())
        self.inputs = torch.randn(_SAMPLES, _WIDTH, generator=own)
        self.outputs = self.inputs @ truth

    def gradient(self, weights: torch.Tensor) -> tuple[torch.Tensor, float]:
        """Of half the mean square error, and the error."""
        error = self.inputs @ weights - self.outputs
        return self.inputs.T @ error / _SAMPLES, float(error.square().mean())


def _time_to_target(
    problem: _Problem, name: str, consistency: md.ps.Consistency, steps: int, seed: int
) -> tuple[float, float]:
    """Seconds until the last worker has seen the target loss, and until all steps are made."""
    # Sync applies the mean of all workers once, SSP the gradient of each.
    lr = _LR if isinstance(consistency, md.ps.Sync) else _LR / md.size()
    start = torch.zeros(_WIDTH)
    table = md.ps.Table(name, like=start, rule=md.ps.SGD(lr=lr), consistency=consistency)
    weights = start
    random = torch.Generator().manual_seed(1000 * seed + md.rank())
    slow = torch.rand(steps, generator=random) < _SLOW_SHARE
    first = problem.gradient(start)[1]
    reached = float("inf")
    md.barrier()
    begin = time.perf_counter()
    for step in range(steps):
        gradient, loss = problem.gradient(weights)
        if loss <= _TARGET * first:
            reached = min(reached, time.perf_counter() - begin)
        time.sleep(_STEP_S * (_SLOW_TIMES if slow[step] else 1))
        weights = table.push_pull(gradient)
    table.finish()
    mine = torch.tensor([reached, time.perf_counter() - begin], dtype=torch.float64)
    md.barrier()
    table.close()
    last = md.allreduce(mine, op=md.Max, name="bench.reached").tolist()
    return last[0], last[1]


def measure(arguments: JobArguments) -> Figures:
    """By turns; medians of the rounds, and SSP's share of Sync's time."""
    problem, steps = _Problem(), arguments.pick(_STEPS, 3)
    taken: dict[str, list[tuple[float, float]]] = {"sync": [], "ssp": []}
    for index in range(arguments.pick(_ROUNDS, 1)):
        for kind, consistency in (("sync", md.ps.Sync()), ("ssp", md.ps.SSP(_STALENESS))):
            name = f"stragglers.{kind}.{index}"
            taken[kind].append(_time_to_target(problem, name, consistency, steps, index))
    figures: Figures = {}
    for kind, pairs in taken.items():
        figures[f"{kind}_steps_s"] = median([end for _, end in pairs])
        target = median([reached for reached, _ in pairs])
        if target < float("inf"):
            figures[f"{kind}_s"] = target
    if "sync_s" in figures and "ssp_s" in figures:
        figures["share"] = figures["ssp_s"] / figures["sync_s"]
    figures["steps_share"] = figures["ssp_steps_s"] / figures["sync_steps_s"]
    return figures
