"""The training-step benchmark: DistributedOptimizer next to DistributedDataParallel over gloo.

Both train the same model on the same random data; "compute" is the step of one rank without any
exchange, which is what a perfect overlap would take: the bound.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel

import mydist as md
from mydist import _C
from mydist.bench.contest import Stopwatch, share
from mydist.bench.implementations import TorchGloo
from mydist.bench.models import MODELS, Workload, make_workload
from mydist.bench.problem import WrongResult
from mydist.bench.results import Measured, Row, Subject, make_row, median

__all__ = ["MODELS", "StepPlan", "measure_step"]

_WARM_UP_STEPS = 3


@dataclass(frozen=True)
class StepPlan:
    """What is measured; the batch is per rank, the steps are per round."""

    model: str
    batch: int
    steps: int
    rounds: int


@dataclass(frozen=True)
class _Trainee:
    name: str
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer
    workload: Workload

    def step(self) -> torch.Tensor:
        """One training step; the loss."""
        self.optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            self.model(self.workload.inputs), self.workload.labels
        )
        torch.autograd.backward(loss)
        self.optimizer.step()
        return loss


def _trainees(plan: StepPlan) -> list[_Trainee]:
    def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    alone, ours, theirs = (make_workload(plan.model, plan.batch, md.rank()) for _ in range(3))
    TorchGloo(one_host=md.local_size() == md.size())
    named = ours.model.named_parameters()
    wrapped = md.DistributedOptimizer(sgd(ours.model), named_parameters=named)
    with warnings.catch_warnings():  # Newer torch prefers a name that older torch does not have.
        warnings.simplefilter("ignore", FutureWarning)
        # mydist does not broadcast the statistics of batch norm at every step, so DDP need not.
        parallel = DistributedDataParallel(theirs.model, broadcast_buffers=False)
    return [
        _Trainee("compute", alone.model, sgd(alone.model), alone),
        _Trainee(f"mydist-{_C.backend_name()}", ours.model, wrapped, ours),
        _Trainee("ddp-gloo", parallel, sgd(parallel), theirs),
    ]


def measure_step(plan: StepPlan) -> list[Row]:
    """Runs everything. Collective over all ranks; rank 0 gets the rows, the others none.

    Raises:
        WrongResult: the two ways of training did not lead to the same parameters.
    """
    trainees = _trainees(plan)
    found = {trainee.name: Measured() for trainee in trainees}
    for _ in range(plan.rounds):
        for trainee in trainees:
            found[trainee.name].add(_round(trainee, plan.steps))
        _check_equal(trainees[1].model, trainees[2].model)
    if md.rank() != 0:
        return []
    size = sum(p.numel() * p.element_size() for p in trainees[0].model.parameters())
    bound = median(found["compute"].times_us)
    rows = []
    for name, measured in found.items():
        subject = Subject(f"step-{plan.model}", name, "float32", md.size(), size)
        rows.append(make_row(subject, measured, bound))
    return rows


def _round(trainee: _Trainee, steps: int) -> Measured:
    """One round; the times are per step."""
    watch = Stopwatch()
    md.barrier()
    for step in range(-_WARM_UP_STEPS, steps):
        if step == 0:
            watch = Stopwatch()
        watch.time(trainee.step)
    return share(watch.measured)


def _check_equal(ours: torch.nn.Module, theirs: torch.nn.Module) -> None:
    for mine, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        if not torch.allclose(mine, wanted, rtol=1e-3, atol=1e-3):
            worst = float((mine - wanted).abs().max())
            raise WrongResult(f"mydist and DDP trained different parameters, by up to {worst}")
