"""ShardedOptimizer: what a program does wrong is an error, or means what it means in torch."""

from __future__ import annotations

from typing import Any

import torch

import mydist as md
from multiproc.checks.models import raises
from multiproc.checks.sharded import BY_STAGE, loss_of, made, sharded, train, uneven_model
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
