"""Training: equal to one process, and the same on all ranks."""

from __future__ import annotations

import torch

import mydist as md
from multiproc.checks.models import expect_equal_parameters
from multiproc.registry import check

GLOBAL_BATCH = 24


def conv_net() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(4 * 6 * 6, 10),
    )


def data(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Images (GLOBAL_BATCH, 1, 8, 8) and labels (GLOBAL_BATCH,) of one step."""
    generator = torch.Generator().manual_seed(step)
    images = torch.rand(GLOBAL_BATCH, 1, 8, 8, generator=generator)
    return images, (images.sum(dim=(1, 2, 3)) * 3).long() % 10


def train(rank: int, size: int, dtype: torch.dtype, steps: int) -> list[float]:
    """Loss of the whole batch, by step; with size 1 nothing of mydist is used."""
    model = conv_net().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if size > 1:
        optimizer = md.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    losses = []
    for step in range(steps):
        images, labels = data(step)
        shard = slice(rank * GLOBAL_BATCH // size, (rank + 1) * GLOBAL_BATCH // size)
        optimizer.zero_grad()
        output = model(images[shard].to(dtype))
        loss = torch.nn.functional.cross_entropy(output, labels[shard])
        loss.backward()
        optimizer.step()
        value = loss.detach().double()
        losses.append(float(md.allreduce(value, name="loss") if size > 1 else value))
    return losses


@check(cases=[(torch.float32, 20, 1e-5), (torch.float64, 20, 1e-12)])
def loss_curve_of_one_process(dtype: torch.dtype, steps: int, tolerance: float) -> None:
    alone = train(0, 1, dtype, steps)
    together = train(md.rank(), md.size(), dtype, steps)
    assert alone[-1] != alone[0]
    for step, (mine, wanted) in enumerate(zip(together, alone, strict=True)):
        error = abs(mine - wanted) / abs(wanted)
        assert error <= tolerance, f"step {step}: {mine} and {wanted}, relative {error:.2e}"


@check()
def parameters_are_bitwise_equal_after_100_steps() -> None:
    torch.manual_seed(100 + md.rank())
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    md.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = md.DistributedOptimizer(
        torch.optim.Adam(model.parameters(), lr=1e-2), named_parameters=model.named_parameters()
    )
    start = [p.detach().clone() for p in model.parameters()]
    for _ in range(100):
        optimizer.zero_grad()
        model(torch.rand(5, 8)).pow(2).mean().backward()
        optimizer.step()
    expect_equal_parameters(model)
    moved = [not torch.equal(p, s) for p, s in zip(model.parameters(), start, strict=True)]
    assert all(moved)
