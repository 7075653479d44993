"""The training-step benchmark: DistributedOptimizer next to DistributedDataParallel over gloo.

Both train the same small convolutional network on the same random images; "compute" is the step
of one rank without any exchange, which is what a perfect overlap would take.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn.parallel import DistributedDataParallel

import mydist as md
from mydist import _C
from mydist.bench.peers import TorchGloo
from mydist.bench.results import Row, quantile

_WARM_UP_STEPS = 3


@dataclass(frozen=True)
class StepPlan:
    """What is measured; the batch is per rank, the steps are per round."""

    batch: int
    steps: int
    rounds: int


def conv_net() -> torch.nn.Sequential:
    """About 420,000 parameters on images of shape (1, 28, 28)."""
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 5, padding=2),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 5, padding=2),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(32 * 7 * 7, 256),
        torch.nn.ReLU(),
        torch.nn.Linear(256, 10),
    )


@dataclass(frozen=True)
class _Trainee:
    name: str
    model: torch.nn.Module
    optimizer: torch.optim.Optimizer


def _trainees() -> list[_Trainee]:
    def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    alone, ours, theirs = conv_net(), conv_net(), conv_net()
    TorchGloo()
    wrapped = md.DistributedOptimizer(sgd(ours), named_parameters=ours.named_parameters())
    parallel = DistributedDataParallel(theirs)
    return [
        _Trainee("compute", alone, sgd(alone)),
        _Trainee(f"mydist-{_C.backend_name()}", ours, wrapped),
        _Trainee("ddp-gloo", parallel, sgd(parallel)),
    ]


def measure_step(plan: StepPlan) -> list[Row]:
    """Runs everything. Collective over all ranks; rank 0 gets the rows, the others none.

    Raises:
        RuntimeError: the two ways of training did not lead to the same parameters.
    """
    generator = torch.Generator().manual_seed(md.rank())
    images = torch.rand(plan.batch, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (plan.batch,), generator=generator)
    trainees = _trainees()
    times: dict[str, list[float]] = {trainee.name: [] for trainee in trainees}
    for _ in range(plan.rounds):
        for trainee in trainees:
            times[trainee.name] += _round(trainee, images, labels, plan.steps)
    _check_equal(trainees)
    if md.rank() != 0:
        return []
    gradient_bytes = sum(p.numel() * 4 for p in trainees[0].model.parameters())
    return [_row(name, gradient_bytes, sorted(found)) for name, found in times.items()]


def _round(
    trainee: _Trainee, images: torch.Tensor, labels: torch.Tensor, steps: int
) -> list[float]:
    """Microseconds of the slowest rank, per step."""
    loss: Callable[..., torch.Tensor] = torch.nn.functional.cross_entropy
    mine = []
    md.barrier()
    for step in range(-_WARM_UP_STEPS, steps):
        started = time.perf_counter()
        trainee.optimizer.zero_grad()
        torch.autograd.backward(loss(trainee.model(images), labels))
        trainee.optimizer.step()
        if step >= 0:
            mine.append((time.perf_counter() - started) * 1e6)
    slowest = md.allreduce(torch.tensor(mine, dtype=torch.float64), op=md.Max, name="bench.times")
    return [float(value) for value in slowest]


def _check_equal(trainees: list[_Trainee]) -> None:
    ours, theirs = trainees[1].model, trainees[2].model
    for mine, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        if not torch.allclose(mine, wanted, rtol=1e-3, atol=1e-4):
            worst = float((mine - wanted).abs().max())
            raise RuntimeError(f"mydist and DDP trained different parameters, by up to {worst}")


def _row(impl: str, gradient_bytes: int, ordered: list[float]) -> Row:
    return Row(
        op="step",
        impl=impl,
        dtype="float32",
        ranks=md.size(),
        size_bytes=gradient_bytes,
        iterations=len(ordered),
        min_us=ordered[0],
        p50_us=quantile(ordered, 0.5),
        p99_us=quantile(ordered, 0.99),
        algbw_gbs=None,
        busbw_gbs=None,
    )
