"""ShardedOptimizer: what a program does wrong is an error, or means what it means in torch."""

from __future__ import annotations

import mydist as md
from multiproc.checks.models import raises
from multiproc.checks.sharded import loss_of, made, train, uneven_model
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
