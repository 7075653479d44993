"""Horovod, measured as peer.h says, in processes that mpirun starts:

mpirun -np N python -m mydist.bench.horovod_peer OP DTYPE ELEMENTS:SAMPLES:CALLS ...
mpirun -np N python -m mydist.bench.horovod_peer step MODEL BATCH STEPS

A training step also prints the gradients after the last step, as Watched.fingerprint() has them.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import torch

from mydist.bench.contest import Stopwatch, take_core
from mydist.bench.implementations import call_of
from mydist.bench.models import make_workload
from mydist.bench.problem import Plan, Problem
from mydist.bench.results import Measured
from mydist.bench.step import WARM_UP_STEPS, Watched

_WARM_UPS = 2


def _report(hvd: Any, elements: int, measured: Measured) -> None:
    """The line of peer.h: means of the costs of all calls, then the times of the slowest rank."""
    mine = [measured.cpu_seconds, measured.context_switches, *measured.times_us]
    rows = hvd.allgather(torch.tensor([mine], dtype=torch.float64), name="result")
    if hvd.rank() != 0:
        return
    numbers = [*rows[:, :2].mean(0).tolist(), *rows[:, 2:].amax(0).tolist()]
    print(f"result horovod {elements}", *(f"{number:.9g}" for number in numbers), flush=True)


def _measure_collective(hvd: Any, op: str, dtype: str, sizes: Sequence[str]) -> None:
    take_core(hvd.rank(), hvd.size())
    kind: torch.dtype = getattr(torch, dtype)
    for size in sizes:
        elements, samples, _ = (int(word) for word in size.split(":"))
        plan = Plan(op, [elements * kind.itemsize], kind, 1)
        problem = Problem(plan.shape(plan.sizes[0], hvd.rank(), hvd.size()))
        call, watch = call_of(hvd, problem), Stopwatch(_WARM_UPS)
        for iteration in range(_WARM_UPS + samples):
            problem.fill(iteration)
            hvd.barrier()
            output = watch.time(call)
            hvd.barrier()
            problem.check(output, iteration, "horovod")
        _report(hvd, elements, watch.measured)


def _measure_step(hvd: Any, model: str, batch: str, steps: str) -> None:
    trainee = Watched("horovod", make_workload(model, int(batch), hvd.rank()))
    trainee.optimizer = hvd.DistributedOptimizer(
        trainee.optimizer, named_parameters=trainee.model.named_parameters()
    )
    watch = Stopwatch(WARM_UP_STEPS)
    for _ in range(WARM_UP_STEPS + int(steps)):
        watch.time(trainee.step)
    _report(hvd, sum(p.numel() for p in trainee.model.parameters()), watch.measured)
    if hvd.rank() == 0:
        print("gradients", *trainee.fingerprint().flatten().tolist(), flush=True)


def main(words: Sequence[str]) -> None:
    """Collective over the processes of one mpirun. Raises WrongResult."""
    hvd = importlib.import_module("horovod.torch")
    hvd.init()
    if words[0] == "step":
        _measure_step(hvd, *words[1:])
    else:
        _measure_collective(hvd, words[0], words[1], words[2:])
    hvd.shutdown()


if __name__ == "__main__":
    main(sys.argv[1:])
