"""ShardedOptimizer: slices train to what one process trains with the whole."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import (
    expect_equal_parameters,
    gradients,
    optimizer_classes,
    raises,
)
from multiproc.registry import check
from mydist import _C

STAGES = (1, 2)
BY_STAGE = [(stage,) for stage in STAGES]
_REFUSED = {"Adafactor", "Muon", "SparseAdam"}  # They do not treat each element alone.
CLASSES = [name for name in optimizer_classes() if name not in _REFUSED]


def uneven_model(dtype: torch.dtype = torch.float64) -> torch.nn.Sequential:
    """No size is a multiple of the number of ranks; one parameter has 1 element, one none."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 37), torch.nn.Tanh(), torch.nn.Linear(37, 1))
    model.register_parameter("empty", torch.nn.Parameter(torch.zeros(0)))
    model.register_parameter("scale", torch.nn.Parameter(torch.ones(())))
    return model.to(dtype)


def loss_of(model: Any, rank: int, step: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.rand(6, 5, generator=generator, dtype=model.scale.dtype)
    return (model.scale * model(inputs)).pow(2).mean() + 0 * model.empty.sum()


def made(name: str, model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    if name == "SGD":
        options.setdefault("momentum", 0.9)
    optimizer: torch.optim.Optimizer = getattr(torch.optim, name)(
        model.parameters(), lr=0.01, **options
    )
    return optimizer


def sharded(model: torch.nn.Module, stage: int, name: str = "AdamW", **options: Any) -> Any:
    return md.ShardedOptimizer(made(name, model), model.named_parameters(), stage, **options)


def average(model: torch.nn.Module, loss_on: Callable[[int], torch.Tensor]) -> None:
    """Gives every parameter the mean gradient of all ranks, as one process computes it."""
    everyone = [gradients(model, lambda rank=rank: loss_on(rank)) for rank in range(md.size())]
    for name, parameter in model.named_parameters():
        parameter.grad = torch.stack([own[name] for own in everyone]).mean(0)


def train(model: torch.nn.Module, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        loss_of(model, md.rank(), step).backward()
        optimizer.step()


def train_alone(model: torch.nn.Module, optimizer: Any, steps: range) -> None:
    """What `train` on all ranks comes to, in one process without mydist."""
    for step in steps:
        average(model, lambda rank, step=step: loss_of(model, rank, step))
        optimizer.step()


def expect_same(model: torch.nn.Module, other: torch.nn.Module) -> None:
    for (name, own), theirs in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-11, atol=1e-12, msg=f"{name} differs")


@check(cases=itertools.product(CLASSES, STAGES))
def trains_what_one_process_trains(name: str, stage: int) -> None:
    model, alone = uneven_model(), uneven_model()
    optimizer, reference = sharded(model, stage, name), made(name, alone)
    assert isinstance(optimizer, getattr(torch.optim, name))
    train(model, optimizer, range(4))
    train_alone(alone, reference, range(4))
    expect_same(model, alone)
    expect_equal_parameters(model)


@check(cases=itertools.product(("AdamW", "SGD"), STAGES))
def has_the_bits_of_distributed_optimizer(name: str, stage: int) -> None:
    # Slices of whole pairs of vectors: no element moves into the tail of a kernel.
    def build() -> torch.nn.Sequential:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(32 * md.size(), 32 * md.size()))
        model.register_parameter("empty", torch.nn.Parameter(torch.zeros(0)))
        model.register_parameter("scale", torch.nn.Parameter(torch.ones(32 * md.size())))
        return model

    def loss(model: Any, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * step + md.rank())
        inputs = torch.rand(4, 32 * md.size(), generator=generator)
        return (model.scale * model(inputs)).pow(2).mean()

    model, other = build(), build()
    optimizer = sharded(model, stage, name)
    reference = md.DistributedOptimizer(made(name, other), other.named_parameters())
    for step in range(10):
        for one, its in ((model, optimizer), (other, reference)):
            its.zero_grad()
            loss(one, step).backward()
            its.step()
    for own, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(own, theirs)
    whole = md.gather_state(optimizer)
    if whole is not None:
        parameters = list(other.parameters())
        for index, values in reference.state_dict()["state"].items():
            for key, value in values.items():
                is_empty = parameters[index].numel() == 0  # It has no state.
                assert is_empty or torch.equal(whole["state"][index][key], value), key


@check(cases=BY_STAGE)
def the_kernel_of_fused_adamw_gives_a_slice_the_bits_of_the_whole(stage: int) -> None:
    model, other = uneven_model(torch.float32), uneven_model(torch.float32)
    optimizer = md.ShardedOptimizer(
        torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), stage=stage
    )
    reference = md.DistributedOptimizer(torch.optim.AdamW(other.parameters(), lr=0.01))
    moments = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in other.parameters()}
    for step in range(3):
        train(model, optimizer, range(step, step + 1))
        reference.zero_grad()
        loss_of(other, md.rank(), step).backward()
        reference.synchronize()
        for p, (first, second) in moments.items():
            numbers = (step + 1, 0.01, 0.9, 0.999, 1e-8, 0.01)
            _C.adamw_(p.detach(), p.grad, first, second, *numbers)
    for own, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(own, theirs)


@check(cases=BY_STAGE)
def each_element_of_the_state_is_on_one_rank(stage: int) -> None:
    model = uneven_model()
    optimizer = sharded(model, stage)
    train(model, optimizer, range(1))
    own = {
        name: optimizer.state[p]["exp_avg"].numel() if p in optimizer.state else 0
        for name, p in model.named_parameters()
    }
    everyone = md.allgather_object(own)
    for name, parameter in model.named_parameters():
        assert sum(counts[name] for counts in everyone) == parameter.numel(), name
    for parameter, values in optimizer.state.items():
        assert parameter in set(model.parameters())
        assert values["exp_avg"].dim() == 1
    assert [len(group["params"]) for group in optimizer.param_groups] == [6]


@check(cases=BY_STAGE)
def state_that_exists_at_wrapping_is_cut(stage: int) -> None:
    model, alone = uneven_model(), uneven_model()
    before, reference = made("Adam", model), made("Adam", alone)
    train_alone(model, before, range(2))
    optimizer = md.ShardedOptimizer(before, model.named_parameters(), stage)
    train(model, optimizer, range(2, 4))
    train_alone(alone, reference, range(4))
    expect_same(model, alone)


@check()
def gradients_of_stage_2_are_none_outside_full_grads() -> None:
    model, alone = uneven_model(), uneven_model()
    optimizer, reference = sharded(model, 2), made("AdamW", alone)
    train(model, optimizer, range(1))
    loss_of(model, md.rank(), 1).backward()
    optimizer.synchronize()
    assert all(p.grad is None for p in model.parameters())
    train_alone(alone, reference, range(1))
    average(alone, lambda rank: loss_of(alone, rank, 1))
    with optimizer.full_grads():
        for p, other in zip(model.parameters(), alone.parameters(), strict=True):
            if p.numel():
                torch.testing.assert_close(p.grad, other.grad, rtol=1e-12, atol=1e-14)
                p.grad.mul_(3)
                other.grad.mul_(3)
    assert all(p.grad is None for p in model.parameters())
    with optimizer.skip_synchronize():
        optimizer.step()
    reference.step()
    expect_same(model, alone)


def accumulate(model: torch.nn.Module, optimizer: Any, how: str, step: int) -> None:
    """Two backward passes and a step."""
    optimizer.zero_grad()
    if how == "no_sync":
        with optimizer.no_sync():
            loss_of(model, md.rank(), 10 * step).backward()
    else:
        loss_of(model, md.rank(), 10 * step).backward()
    loss_of(model, md.rank(), 10 * step + 1).backward()
    optimizer.step()


@check(cases=[(1, "full"), (2, "full"), (2, "shard"), (1, "no_sync"), (2, "no_sync")])
def backward_passes_are_added_up(stage: int, how: str) -> None:
    model, alone = uneven_model(), uneven_model()
    options = {"accumulate": how} if how != "no_sync" else {}
    passes = 1 if how == "no_sync" else 2
    optimizer = sharded(model, stage, backward_passes_per_step=passes, **options)
    reference = made("AdamW", alone)
    for step in range(3):
        accumulate(model, optimizer, how, step)
        average(
            alone,
            lambda rank, step=step: (
                loss_of(alone, rank, 10 * step) + loss_of(alone, rank, 10 * step + 1)
            ),
        )
        reference.step()
    expect_same(model, alone)
    expect_equal_parameters(model)


@check(min_size=2)
def whole_gradients_that_are_added_up_travel_once() -> None:
    sent: dict[str, int] = {}
    for how in ("shard", "full"):
        model = uneven_model()
        optimizer = sharded(model, 2, accumulate=how, backward_passes_per_step=3)
        before = md.stats()["tensor_bytes"]
        for step in range(3):
            loss_of(model, md.rank(), step).backward()
        optimizer.step()
        sent[how] = md.stats()["tensor_bytes"] - before
    (bucket,) = [held.plan for held in optimizer._slices.buckets]
    # Twice more, in slices: there are three passes.
    assert sent["shard"] - sent["full"] == 2 * 8 * bucket.padded_length, sent


@check()
def one_backward_too_many_is_an_error() -> None:
    model = uneven_model()
    optimizer = sharded(model, 2)
    loss_of(model, md.rank()).backward()
    raises(lambda: loss_of(model, md.rank()).backward(), "more than backward_passes_per_step (1)")
    raises(optimizer.zero_grad, "zero_grad() was called after backward()")
    optimizer.step()


@check(cases=itertools.product(STAGES, ("shard", "full")))
def ranks_may_use_different_parameters(stage: int, how: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.ModuleList(torch.nn.Linear(3, 1, dtype=torch.float64) for _ in range(3))
    alone = copy.deepcopy(model)
    # Which layers a rank uses in a step; the last step brings back one that was idle.
    uses = [lambda r: {0, 1 + r % 2}, lambda r: {0}, lambda r: {2} if r == 0 else {0}]

    def loss(one: Any, rank: int, step: int) -> torch.Tensor:
        inputs = torch.full((2, 3), rank + 1.0 + step, dtype=torch.float64)
        return sum(one[i](inputs).pow(2).mean() for i in sorted(uses[step](rank)))  # type: ignore

    optimizer = md.ShardedOptimizer(
        made("Adam", model), model.named_parameters(), stage, accumulate=how
    )
    reference = made("Adam", alone)
    for step in range(3):
        optimizer.zero_grad()
        loss(model, md.rank(), step).backward()
        optimizer.step()
        average(alone, lambda rank, step=step: loss(alone, rank, step))
        if md.size() == 1:
            for index, p in enumerate(alone.parameters()):
                p.grad = p.grad if index // 2 in uses[step](0) else None
        reference.step()
    expect_same(model, alone)


@check(cases=BY_STAGE)
def frozen_parameters_may_be_thawed(stage: int) -> None:
    model, alone = uneven_model(), uneven_model()
    for one in (model, alone):
        one[0].requires_grad_(False)
    optimizer, reference = sharded(model, stage), made("AdamW", alone)
    train(model, optimizer, range(2))
    assert model[0].weight not in optimizer.state
    for step in range(2):
        average_trained(alone, step)
        reference.step()
    for one in (model, alone):
        one[0].requires_grad_(True)
    train(model, optimizer, range(2, 4))
    for step in range(2, 4):
        average_trained(alone, step)
        reference.step()
    expect_same(model, alone)
    for one in (model, alone):
        one[2].requires_grad_(False)
    train(model, optimizer, range(4, 5))
    reference.zero_grad()
    average_trained(alone, 4)
    reference.step()
    expect_same(model, alone)


def average_trained(model: torch.nn.Module, step: int) -> None:
    """`average` for the parameters that are not frozen."""
    trained = [p for p in model.parameters() if p.requires_grad]
    sums = [torch.zeros_like(p) for p in trained]
    for rank in range(md.size()):
        own = torch.autograd.grad(loss_of(model, rank, step), trained)
        for total, value in zip(sums, own, strict=True):
            total += value / md.size()
    for p, total in zip(trained, sums, strict=True):
        p.grad = total


@check()
def parameters_may_move_and_groups_may_be_added() -> None:
    model, alone = uneven_model(), uneven_model()
    optimizer = md.ShardedOptimizer(torch.optim.AdamW(model[0].parameters(), lr=0.01), stage=2)
    reference = torch.optim.AdamW(alone[0].parameters(), lr=0.01)
    rest = [list(one.parameters())[0:2] + list(one[2].parameters()) for one in (model, alone)]
    train(model, optimizer, range(1))
    train_alone(alone, reference, range(1))
    model[0].weight.data = model[0].weight.data.clone()
    optimizer.add_param_group({"params": rest[0], "lr": 0.1})
    reference.add_param_group({"params": rest[1], "lr": 0.1})
    train(model, optimizer, range(1, 3))
    train_alone(alone, reference, range(1, 3))
    expect_same(model, alone)


@check(min_size=2)
def an_optimizer_may_go_while_its_gradients_are_in_flight() -> None:
    for stage in STAGES:
        model = uneven_model()
        optimizer = sharded(model, stage)
        train(model, optimizer, range(1))
        loss_of(model, md.rank(), 1).backward()
        del optimizer
        other, alone = uneven_model(), uneven_model()
        again, reference = sharded(other, stage), made("AdamW", alone)
        train(other, again, range(2))
        train_alone(alone, reference, range(2))
        expect_same(other, alone)
        loss_of(model, md.rank(), 1).backward()  # No hook is left.
