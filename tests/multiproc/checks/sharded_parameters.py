"""ShardedOptimizer(partition="parameter"): each whole parameter is updated by one rank."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import expect_equal_parameters
from multiproc.checks.sharded import (
    BY_STAGE,
    STAGES,
    average,
    expect_same,
    loss_of,
    made,
    train,
    uneven_model,
)
from multiproc.checks.sharded_checkpoints import opened, shared_folder
from multiproc.registry import check


class Lamb(torch.optim.Optimizer):
    """The trust ratio of LAMB (arXiv:1904.00962) on plain gradients: needs whole parameters."""

    def __init__(self, params: Any, lr: float = 0.01) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                mean = state.setdefault("mean", torch.zeros_like(p))
                mean.mul_(0.9).add_(p.grad, alpha=0.1)
                state["ratio"] = p.norm() / (mean.norm() + 1e-6)
                p.sub_(mean * state["ratio"], alpha=group["lr"])


def build(name: str, model: Any) -> Any:
    if name == "Adafactor":
        model.empty.requires_grad_(False)  # torch divides by its size.
    if name == "Muon":  # It takes matrices only.
        for parameter in model.parameters():
            parameter.requires_grad_(parameter.dim() == 2)
        return torch.optim.Muon([model[0].weight, model[2].weight], lr=0.01)
    return Lamb(model.parameters()) if name == "Lamb" else made(name, model)


def both(name: str, stage: int, **options: Any) -> tuple[Any, Any, Any, Any]:
    model, alone = uneven_model(), uneven_model()
    optimizer = md.ShardedOptimizer(
        build(name, model), model.named_parameters(), stage, partition="parameter", **options
    )
    return model, optimizer, alone, build(name, alone)


def train_both(model: Any, optimizer: Any, alone: Any, reference: Any, steps: range) -> None:
    train(model, optimizer, steps)
    for step in steps:
        average_trained_of(alone, step)
        reference.step()


@check(cases=itertools.product(("Adafactor", "Lamb", "Muon", "AdamW"), STAGES))
def trains_what_one_process_trains(name: str, stage: int) -> None:
    model, optimizer, alone, reference = both(name, stage)
    train_both(model, optimizer, alone, reference, range(4))
    expect_same(model, alone)
    expect_equal_parameters(model)
    for parameter, values in optimizer.state.items():  # Whole, and on one rank.
        for value in values.values():
            assert value.numel() == 1 or value.dim() == parameter.dim()
    owned = md.allgather_object([n for n, p in model.named_parameters() if p in optimizer.state])
    trained = [n for n, p in model.named_parameters() if p.requires_grad and p.numel()]
    assert sorted(itertools.chain(*owned)) == sorted(trained)


def average_trained_of(model: Any, step: int) -> None:
    frozen = [p for p in model.parameters() if not p.requires_grad]
    for p in frozen:
        p.requires_grad_(True)
    average(model, lambda rank: loss_of(model, rank, step))
    for p in frozen:
        p.requires_grad_(False)
        p.grad = None


@check(cases=BY_STAGE)
def parameters_may_be_thawed_and_travel_compressed(stage: int) -> None:
    options = {"compression": md.Compression.fp16}
    model, optimizer, other, _ = both("Lamb", stage, **options)
    reference = md.DistributedOptimizer(build("Lamb", other), other.named_parameters(), **options)
    for steps, frozen in ((range(2), True), (range(2, 4), False)):
        for one, its in ((model, optimizer), (other, reference)):
            one[0].requires_grad_(not frozen)
            train(one, its, steps)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    use, n = optimizer.memory(), sum(p.numel() for p in model.parameters())
    owned = sum(p.numel() for p in optimizer.state)
    assert use.padding == 0
    assert use.gradients == 8 * (n if stage == 1 else owned)
    assert sum(md.allgather_object(owned)) == n


@check(cases=BY_STAGE)
def clipping_and_full_grads_see_the_whole(stage: int) -> None:
    model, optimizer, alone, reference = both("Lamb", stage, backward_passes_per_step=2)
    for step in range(2):
        optimizer.zero_grad()
        for _ in range(2):
            (loss_of(model, md.rank(), step) / 2).backward()
        norm = optimizer.clip_grad_norm_(0.01)
        if stage == 2:
            with optimizer.full_grads():
                for p in model.parameters():
                    p.grad = None if p is model.scale else p.grad
        optimizer.step()
        average(alone, lambda rank, step=step: loss_of(alone, rank, step))
        expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
        if stage == 2:
            alone.scale.grad = None
        reference.step()
        torch.testing.assert_close(norm.double(), expected, rtol=1e-6, atol=0)
    for own, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-6, atol=1e-8)


@check(cases=itertools.product(("Adafactor", "Lamb"), STAGES))
def state_travels_by_every_way(name: str, stage: int) -> None:
    model, optimizer, alone, reference = both(name, stage)
    train_both(model, optimizer, alone, reference, range(2))
    whole = md.gather_state(optimizer)
    if whole is not None:  # What one process has, and can load.
        expected = reference.state_dict()
        for index, values in whole["state"].items():
            for key, value in values.items():
                its = expected["state"][index][key]
                torch.testing.assert_close(value, its, rtol=1e-9, atol=1e-15)
        build(name, uneven_model()).load_state_dict(copy.deepcopy(whole))
    others = []
    with shared_folder() as folder:
        for files in (True, False):
            part = folder / str(files)
            opened(part, model, optimizer, sharded=files).save(2)
            other, again, lone, plain = both(name, 3 - stage)
            opened(part, other, again)
            opened(part, lone, plain)
            others.append((other, again))
            for step in range(2, 4):
                average_trained_of(lone, step)
                plain.step()
            expect_lone = lone
    for loads in (
        lambda its: md.scatter_state(its, whole),
        lambda its: its.load_state_dict(copy.deepcopy(optimizer.state_dict())),
        lambda its: its.load_state_dict(copy.deepcopy(reference.state_dict())),
    ):
        other, again, _, _ = both(name, stage)
        other.load_state_dict(model.state_dict())
        loads(again)
        others.append((other, again))
    train(model, optimizer, range(2, 4))
    expect_same(model, expect_lone)
    for other, again in others:
        train(other, again, range(2, 4))
        expect_same(model, other)


@check(cases=BY_STAGE)
def slices_of_elements_go_on_by_parameter(stage: int) -> None:
    with shared_folder() as folder:
        model = uneven_model()
        optimizer = md.ShardedOptimizer(made("AdamW", model), model.named_parameters(), stage)
        checkpoint = opened(folder, model, optimizer, sharded=True)
        train(model, optimizer, range(2))
        checkpoint.save(2)
        other, again, _, _ = both("AdamW", stage)
        opened(folder, other, again)
        train(model, optimizer, range(2, 4))
        train(other, again, range(2, 4))
        expect_same(model, other)
