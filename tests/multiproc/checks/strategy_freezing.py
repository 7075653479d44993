"""Rounds of strategies that negotiation has nothing to do with."""

from __future__ import annotations

from collections.abc import Callable

import torch

import mydist as md
from multiproc.checks.freezing import expect_no_messages
from multiproc.reference import expect_near
from multiproc.registry import check

FROZEN: dict[str, Callable[[], md.Strategy]] = {
    "local": lambda: md.LocalSGD(4),
    "streaming": lambda: md.DiLoCo(4, fragments=2, delay=1),
}


@check(min_size=2, cases=[(name,) for name in FROZEN])
def rounds_take_no_control_messages(name: str) -> None:
    parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    average = torch.zeros(2)
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(parameters, lr=0.01, momentum=0.1),
        named_parameters=[(f"frozen.{name}.{i}", p) for i, p in enumerate(parameters)],
        named_buffers=[("average", average)],
        communication=FROZEN[name](),
    )
    number = 0

    def one_round() -> None:
        nonlocal number
        for _ in range(4):
            number += 1
            for parameter in parameters:
                parameter.grad = torch.full((3,), float(md.rank() + number % 3))
            average.fill_(float(number + md.rank()))
            optimizer.count_samples(2)
            optimizer.step()
        if name != "streaming":  # Buffers are averaged in its finish() only.
            wanted = torch.full((2,), number + (md.size() - 1) / 2)
            expect_near(average, wanted, 1e-6, f"the round after step {number}")

    expect_no_messages(one_round)
    optimizer.finish()
    everyone = md.allgather_object([p.tolist() for p in parameters])
    assert everyone == [everyone[0]] * md.size() and everyone[0] != [[1.0] * 3] * 2
