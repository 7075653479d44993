"""ShardedOptimizer on unusual models: tied, recomputed, compiled, or smaller than the job."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

import mydist as md
from multiproc.checks.models import expect_equal_parameters
from multiproc.checks.sharded import BY_STAGE, average, expect_same, made
from multiproc.registry import check


class Tied(torch.nn.Module):
    """The output layer has the weights of the embedding; a block is computed again in backward."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = torch.nn.Embedding(11, 7, dtype=torch.float64)
        self.block = torch.nn.Linear(7, 7, dtype=torch.float64)
        self.output = torch.nn.Linear(7, 11, bias=False, dtype=torch.float64)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(self.block, self.embedding(tokens), use_reentrant=False)
        result: torch.Tensor = self.output(hidden.tanh())
        return result


def loss_of(model: Any, rank: int, step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + rank)
    tokens = torch.randint(11, (5,), generator=generator)
    return torch.nn.functional.cross_entropy(model(tokens), tokens.flip(0))


def train_both(model: Any, optimizer: Any, alone: Any, reference: Any) -> None:
    """Three steps on all ranks, and the same in one process."""
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, md.rank(), step).backward()
        optimizer.step()
        average(alone, lambda rank, step=step: loss_of(alone, rank, step))
        reference.step()


@check(cases=BY_STAGE)
def tied_weights_and_recomputed_blocks(stage: int) -> None:
    model, alone = Tied(), Tied()
    optimizer = md.ShardedOptimizer(made("Adam", model), model.named_parameters(), stage)
    train_both(model, optimizer, alone, made("Adam", alone))
    expect_same(model, alone)
    assert model.output.weight is model.embedding.weight
    expect_equal_parameters(model)


@check(cases=BY_STAGE)
def compiled_blocks(stage: int) -> None:
    model, alone = Tied(), Tied()
    optimizer = md.ShardedOptimizer(made("Adam", model), model.named_parameters(), stage)
    model.block = torch.compile(model.block, backend="aot_eager")
    train_both(model, optimizer, alone, made("Adam", alone))
    expect_same(model.block, alone.block)


@check(cases=BY_STAGE)
def fewer_elements_than_ranks(stage: int) -> None:
    model = torch.nn.ParameterDict({"only": torch.nn.Parameter(torch.tensor(2.0))})
    alone = torch.tensor(2.0)
    optimizer = md.ShardedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9), model.named_parameters(), stage
    )
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1000)
    momentum = 0.0
    for step in range(4):
        optimizer.zero_grad()
        loss = model["only"] * (md.rank() + 1.0) * (math.inf if step == 1 else 1.0)
        scaler.scale(loss).backward()
        if step != 1:
            scaler.unscale_(optimizer)
            norm = optimizer.clip_grad_norm_(1.0)
            mean = (md.size() + 1) / 2
            assert math.isclose(float(norm), mean, rel_tol=1e-6)
            momentum = 0.9 * momentum + mean * min(1.0, 1.0 / (mean + 1e-6))
            alone -= 0.5 * momentum
        scaler.step(optimizer)
        scaler.update()
    torch.testing.assert_close(model["only"].detach(), alone, rtol=1e-5, atol=0)
    assert scaler.get_scale() == 2.0
    assert len(optimizer.state) == (md.rank() == 0)
