"""ShardedOptimizer: what a program does wrong is an error, or means what it means in torch."""

from __future__ import annotations

import itertools
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import expect_equal_parameters, raises
from multiproc.checks.sharded import (
    BY_STAGE,
    average,
    expect_same,
    loss_of,
    made,
    sharded,
    train,
    train_alone,
    uneven_model,
)
from multiproc.registry import check


@check(min_size=2)
def state_that_only_some_ranks_have_is_a_mismatch_at_wrapping() -> None:
    model = uneven_model()
    before = made("Adam", model)
    if md.rank() == 1:
        loss_of(model, md.rank()).backward()
        before.step()
    raises(
        lambda: md.ShardedOptimizer(before, model.named_parameters()),
        "ShardedOptimizer: the state of parameter '0.bias' differs between ranks",
        "rank 1: exp_avg, exp_avg_sq, step",
        ": none",
        kind=md.MismatchError,
    )
    assert type(before).__name__ == "Adam"
    md.broadcast_parameters(model.state_dict(), root_rank=1)
    md.broadcast_optimizer_state(before, root_rank=1)
    train(model, md.ShardedOptimizer(before, model.named_parameters()), range(1, 2))


@check(cases=BY_STAGE)
def a_model_that_changes_after_wrapping_is_an_error_at_the_next_step(stage: int) -> None:
    for change, words in (
        (lambda m: m.double(), "parameter 'weight' is torch.float64 now and was torch.float32"),
        (lambda m: m.to(memory_format=torch.channels_last), "'weight' is not contiguous now"),
    ):
        torch.manual_seed(0)
        model = torch.nn.Conv2d(3, 4, 2, bias=False)
        optimizer = sharded(model, stage)

        def step(one: Any = model, its: Any = optimizer) -> None:
            its.zero_grad()
            one(torch.ones(1, 3, 4, 4, dtype=one.weight.dtype)).pow(2).sum().backward()
            its.step()

        step()
        change(model)
        before = model.weight.detach().clone()
        raises(step, words, "wrap a new optimizer")
        assert torch.equal(model.weight, before)
        whole = md.gather_state(optimizer)  # Still there.
        assert whole is None or whole["state"][0]["exp_avg"].shape == model.weight.shape
        optimizer._distribution.reset()


@check(min_size=2, cases=itertools.product((1, 2), (False, True)))
def an_error_in_the_update_of_one_rank_is_an_error_on_all(stage: int, fused: bool) -> None:
    model = uneven_model(torch.float32)
    # Rank 0 has parts of both groups, and the first is updated when the second fails.
    groups = [
        {"params": [p for p in model.parameters() if p is not model[0].weight]},
        {"params": [model[0].weight]},
    ]
    adam = torch.optim.AdamW(groups, lr=0.01, fused=fused or None)
    optimizer = md.ShardedOptimizer(adam, model.named_parameters(), stage)
    train(model, optimizer, range(1))
    before = [p.detach().clone() for p in model.parameters()]
    loss_of(model, md.rank(), 1).backward()
    optimizer.param_groups[1]["eps"] = "wrong" if md.rank() == 0 else 1e-8
    if md.rank() == 0:
        raises(optimizer.step, "", kind=TypeError)
    else:
        words = ("rank 0 could not update its slices: TypeError", "those of the step before")
        raises(optimizer.step, *words, kind=md.MydistError)
    assert all(map(torch.equal, before, model.parameters()))
    optimizer.param_groups[1]["eps"] = 1e-8
    optimizer.step()  # The gradients are still there.
    assert not all(map(torch.equal, before, model.parameters()))
    expect_equal_parameters(model)


@check(min_size=2, cases=BY_STAGE)
def a_model_that_changes_on_one_rank_is_an_error_on_all(stage: int) -> None:
    model = uneven_model()
    optimizer = sharded(model, stage)
    train(model, optimizer, range(1))
    before = model[2].weight.detach().clone()
    loss_of(model, md.rank(), 1).backward()
    if md.rank() == 1:
        model[0].float()
        raises(optimizer.step, "parameter '0.bias' is torch.float32 now and was torch.float64")
    else:
        raises(optimizer.step, "rank 1 cannot take the step: ValueError", kind=md.MydistError)
    assert torch.equal(model[2].weight, before)
    optimizer._distribution.reset()


@check()
def a_gradient_that_is_set_to_none_in_full_grads_is_left_out_of_the_step() -> None:
    model, alone = uneven_model(), uneven_model()
    optimizer, reference = sharded(model, 2), made("AdamW", alone)
    train(model, optimizer, range(1))
    train_alone(alone, reference, range(1))
    loss_of(model, md.rank(), 1).backward()
    average(alone, lambda rank: loss_of(alone, rank, 1))
    with optimizer.full_grads():
        model[0].weight.grad = None
    alone[0].weight.grad = None
    with optimizer.full_grads():
        assert model[0].weight.grad is None
    optimizer.step()
    reference.step()
    expect_same(model, alone)
    train(model, optimizer, range(2, 3))  # And comes back with the next gradient.
    train_alone(alone, reference, range(2, 3))
    expect_same(model, alone)


@check(cases=[("clip",), ("synchronize",)])
def a_backward_after_a_skipped_step_is_an_error_until_zero_grad(how: str) -> None:
    model, alone = uneven_model(), uneven_model()
    optimizer, reference = sharded(model, 2), made("AdamW", alone)
    loss_of(model, md.rank(), 7).backward()
    if how == "clip":
        optimizer.clip_grad_norm_(1.0)
    else:
        optimizer.synchronize()
    model.zero_grad()
    raises(loss_of(model, md.rank(), 0).backward, "Call optimizer.zero_grad() when a step is")
    train(model, optimizer, range(2))
    train_alone(alone, reference, range(2))
    expect_same(model, alone)
