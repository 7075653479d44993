"""DistributedOptimizer with op=Adasum, against the published formula in float64."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import (
    expect_equal_parameters,
    expect_same_parameters,
    loss_of,
    raises,
    tiny_model,
    unchecked,
    wrapped,
)
from multiproc.checks.optimizer_scaling import backward, scaler_of, unchanged, values
from multiproc.registry import check

Vectors = list[torch.Tensor]


def pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Adasum of two vectors (arXiv:2006.02924, section 3)."""
    dot, norm_a, norm_b = float((a * b).sum()), float((a * a).sum()), float((b * b).sum())
    of_a = 1 - dot / (2 * norm_a) if norm_a else 1.0
    of_b = 1 - dot / (2 * norm_b) if norm_b else 1.0
    return of_a * a + of_b * b


def adasum(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Neighbours are combined, level by level; one without a neighbour waits for the next level."""
    level = list(vectors)
    while len(level) > 1:
        level = [
            pair(level[i], level[i + 1]) if i + 1 < len(level) else level[i]
            for i in range(0, len(level), 2)
        ]
    return level[0]


class Simulation:
    """All ranks in one process: a model that everyone shares, an optimizer for each rank."""

    def __init__(self, model: torch.nn.Module, make: Any, ranks: Sequence[int]) -> None:
        self.model = model
        self._replicas = {rank: copy.deepcopy(model) for rank in ranks}
        self._optimizers = {rank: make(self._replicas[rank]) for rank in ranks}

    def step(self, loss_on: Any) -> None:
        """`loss_on(model, rank)` accumulates the gradients of a rank by calling backward."""
        changes: dict[str, Vectors] = {name: [] for name, _ in self.model.named_parameters()}
        for rank, replica in self._replicas.items():
            replica.load_state_dict(self.model.state_dict())
            self._optimizers[rank].zero_grad()
            loss_on(replica, rank)
            self._optimizers[rank].step()
            starts = dict(self.model.named_parameters())
            for name, parameter in replica.named_parameters():
                changes[name].append(parameter.detach() - starts[name].detach())
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter += adasum(changes[name])


def sgd(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.05)


def everyone() -> range:
    return range(md.size())


@check(cases=[(name, groups) for name in ("sgd", "adam") for groups in (None, 2)])
def steps_are_combined(name: str, groups: int | None) -> None:
    make = {"sgd": sgd, "adam": adam}[name]
    model = tiny_model()
    simulation = Simulation(tiny_model(), make, everyone())
    optimizer = md.DistributedOptimizer(
        make(model), named_parameters=model.named_parameters(), op=md.Adasum, groups=groups
    )
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, md.rank(), step).backward()
        optimizer.step()
        simulation.step(lambda m, rank, step=step: loss_of(m, rank, step).backward())
        expect_same_parameters(model, simulation.model, 1e-9)
    expect_equal_parameters(model)


@check()
def several_backwards_and_closures() -> None:
    model = tiny_model()
    simulation = Simulation(tiny_model(), sgd, everyone())
    optimizer = md.DistributedOptimizer(sgd(model), op=md.Adasum, backward_passes_per_step=2)

    def twice(trained: torch.nn.Module, rank: int) -> None:
        for part in range(2):
            loss_of(trained, rank, part).backward()

    twice(model, md.rank())
    optimizer.step()
    simulation.step(twice)
    expect_same_parameters(model, simulation.model, 1e-9)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, md.rank(), 3)
        loss.backward()
        return loss

    own = loss_of(model, md.rank(), 3).item()
    assert optimizer.step(closure).item() == own
    simulation.step(lambda m, rank: loss_of(m, rank, 3).backward())
    expect_same_parameters(model, simulation.model, 1e-9)


@check()
def synchronize_leaves_gradients_alone() -> None:
    model = tiny_model()
    optimizer = wrapped(model, op=md.Adasum)
    loss_of(model, md.rank()).backward()
    own = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    optimizer.synchronize()
    for parameter, gradient in zip(model.parameters(), own, strict=True):
        assert parameter.grad is not None and torch.equal(parameter.grad, gradient)
    norm = math.sqrt(sum(float(gradient.pow(2).sum()) for gradient in own))
    assert math.isclose(float(optimizer.clip_grad_norm_(norm / 2)), norm, rel_tol=1e-9)
    with optimizer.no_sync():
        loss_of(model, md.rank(), 1).backward()
    optimizer.step()
    expect_equal_parameters(model)


@check()
def what_one_rank_does_not_use_does_not_count() -> None:
    torch.manual_seed(0)
    branches = torch.nn.ModuleList(torch.nn.Linear(4, 2) for _ in range(2)).double()
    simulation = Simulation(copy.deepcopy(branches), sgd, everyone())
    optimizer = md.DistributedOptimizer(sgd(branches), op=md.Adasum)

    def use(trained: Any, rank: int) -> None:
        trained[rank % 2](torch.full((2, 4), rank + 1.0, dtype=torch.float64)).sum().backward()

    for _ in range(2):
        optimizer.zero_grad()
        use(branches, md.rank())
        optimizer.step()
        simulation.step(use)
    expect_same_parameters(branches, simulation.model, 1e-9)


@check(cases=[("fp16",), ("bf16",)])
def compressed_changes(kind: str) -> None:
    model = tiny_model()
    simulation = Simulation(tiny_model(), sgd, everyone())
    optimizer = md.DistributedOptimizer(
        sgd(model), op=md.Adasum, compression=getattr(md.Compression, kind)
    )
    loss_of(model, md.rank()).backward()
    optimizer.step()
    simulation.step(lambda m, rank: loss_of(m, rank).backward())
    expect_same_parameters(model, simulation.model, {"fp16": 1e-3, "bf16": 1e-2}[kind])
    expect_equal_parameters(model)


@check()
def frozen_parameters_and_state_dicts() -> None:
    model = tiny_model()
    optimizer = md.DistributedOptimizer(adam(model), op=md.Adasum)
    model[0].requires_grad_(False)
    frozen = values(model[0])
    loss_of(model, md.rank()).backward()
    optimizer.step()
    assert unchanged(model[0], frozen)
    other = tiny_model()
    other.load_state_dict(model.state_dict())
    again = md.DistributedOptimizer(adam(other), op=md.Adasum)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    model[0].requires_grad_(True)
    for trained, with_optimizer in ((model, optimizer), (other, again)):
        with_optimizer.zero_grad()
        loss_of(trained, md.rank(), 1).backward()
        with_optimizer.step()
    assert unchanged(other, values(model))
    expect_equal_parameters(model)


@check()
def parameters_added_later() -> None:
    model = tiny_model()
    simulation = Simulation(tiny_model(), sgd, everyone())
    first, last = list(model[0].parameters()), list(model[2].parameters())
    inner = torch.optim.SGD(first, lr=0.1, momentum=0.9)
    optimizer = md.DistributedOptimizer(inner, op=md.Adasum)
    optimizer.add_param_group({"params": last})
    loss_of(model, md.rank()).backward()
    optimizer.step()
    simulation.step(lambda m, rank: loss_of(m, rank).backward())
    expect_same_parameters(model, simulation.model, 1e-9)


@check(min_size=2, cases=[("step",), ("unscale first",)])
def overflow_on_one_rank_skips_the_step(how: str) -> None:
    model = tiny_model().float()
    optimizer = wrapped(model, op=md.Adasum)
    scaler = scaler_of(64.0)
    before = values(model)
    backward(model, scaler, overflow=md.rank() == 1)
    if how == "unscale first":
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    assert unchanged(model, before) and scaler.get_scale() == 32.0
    optimizer.zero_grad()
    backward(model, scaler)
    scaler.step(optimizer)
    assert not unchanged(model, before)
    expect_equal_parameters(model)


@check(min_size=2)
def a_failed_reduction_leaves_the_parameters() -> None:
    width = 3 if md.rank() == 0 else 2
    model = torch.nn.Linear(width, 1)
    with unchecked():
        optimizer = wrapped(model, op=md.Adasum)
    before = values(model)
    model(torch.ones(1, width)).sum().backward()
    raises(optimizer.step, "adasum.weight", "[1, 3]", "[1, 2]", kind=md.MismatchError)
    assert unchanged(model, before)


@check()
def refused_with_a_reason() -> None:
    torch.manual_seed(0)
    model = torch.nn.Embedding(5, 3, sparse=True)
    optimizer = wrapped(model, op=md.Adasum)
    raises(optimizer.skip_synchronize, "skip_synchronize()", "op=Adasum", "call step() without it")
    model(torch.tensor([1, 2])).sum().backward()
    raises(optimizer.step, "'weight'", "sparse", "op=Adasum", "sparse_as_dense=True")
    optimizer = wrapped(model, op=md.Adasum, sparse_as_dense=True)
    optimizer.step()
    expect_equal_parameters(model)
