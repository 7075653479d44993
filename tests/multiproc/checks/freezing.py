"""Steps that negotiation has nothing to do with, and what brings it back.

Counters are read before the last step: no rank can go on to something else before all have made it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

import mydist
from multiproc.registry import check

# More than enough for two equal steps, also when earlier deviations have made the job wait longer.
SETTLING_STEPS = 300
STEPS = 30


def expect_no_messages(step: Callable[[], None]) -> None:
    for _ in range(SETTLING_STEPS):
        step()
    before = mydist.stats()
    for _ in range(STEPS):
        step()
    after = mydist.stats()
    step()
    changed = {key: after[key] - before[key] for key in after}
    assert changed["frozen_steps"] == STEPS, changed
    assert changed["thaws"] == 0, changed
    # Between hosts, one word per bucket from leader to leader; a bucket is one collective or more.
    for way in ("sent", "received"):
        votes = changed[f"host_votes_{way}"]
        assert changed[f"control_messages_{way}"] == votes, changed
        leads = mydist.local_rank() == 0 and mydist.cross_size() > 1
        assert (votes > 0) == leads, changed
    assert changed["host_votes_sent"] <= (mydist.cross_size() - 1) * changed["batches"], changed


@check(min_size=2)
def a_synchronous_step_takes_no_control_messages() -> None:
    def step() -> None:
        first = mydist.allreduce(torch.full((5,), 2.0), name="first", op=mydist.Sum)
        second = mydist.allgather(torch.full((2, 3), float(mydist.rank())), name="second")
        assert first.tolist() == [2.0 * mydist.size()] * 5
        assert second[:, 0].tolist() == [float(r) for r in range(mydist.size()) for _ in range(2)]

    expect_no_messages(step)


@check(min_size=2)
def a_training_step_takes_no_control_messages() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = mydist.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-6), named_parameters=model.named_parameters()
    )
    data = torch.full((4, 8), float(mydist.rank() + 1))

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    expect_no_messages(step)


@check(min_size=2)
def an_async_step_with_deviations_is_right() -> None:
    size = mydist.size()
    for step in range(400):
        names = ["a", "b", "c"]
        if step % 97 == 50:
            names.insert(1, "extra")
        if step % 89 == 40 and mydist.rank() == 0:
            names.reverse()
        if step % 101 == 30:
            names.remove("b")
        handles = [
            mydist.allreduce_async(torch.full((3,), float(step)), name=name, op=mydist.Sum)
            for name in names
        ]
        for handle in handles:
            assert mydist.synchronize(handle).tolist() == [float(step * size)] * 3
    assert mydist.stats()["thaws"] > 0
