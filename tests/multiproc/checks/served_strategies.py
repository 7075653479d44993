"""Strategies whose model is on servers, on real ranks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import raises
from multiproc.reference import expect_near, raw
from multiproc.registry import check

FEATURES, ROWS = 6, 64
RATE = 0.05
STRATEGIES: dict[str, Callable[[], md.Strategy]] = {
    "gradients": lambda: md.AsynchronousGradients(md.ps.SGD(lr=RATE)),
    "sync": lambda: md.AsynchronousGradients(md.ps.SGD(lr=RATE), md.ps.Sync()),
    "dc-asgd": lambda: md.AsynchronousGradients(
        md.ps.DCASGD(lr=RATE, lam=0.1, adaptive=True), md.ps.Async()
    ),
    "downpour": lambda: md.Downpour(2, 3, rule=md.ps.Adagrad(lr=0.3)),
    "warm": lambda: md.Downpour(2, 2, warm_start_steps=3, rule=md.ps.Adagrad(lr=0.3)),
    "elastic": lambda: md.ElasticAveraging(3, synchronous=False),
}
BY_NAME = [(name,) for name in STRATEGIES]


class Regression:
    """Least squares without noise; each rank has rows of its own."""

    def __init__(self, strategy: md.Strategy | None) -> None:
        generator = torch.Generator().manual_seed(7)
        self.truth = torch.randn(FEATURES, 1, generator=generator)
        generator.manual_seed(8 + md.rank())
        self.inputs = torch.randn(ROWS, FEATURES, generator=generator)
        self.model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 1))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.zero_()
        self.optimizer: Any = md.DistributedOptimizer(
            torch.optim.SGD(self.model.parameters(), lr=RATE),
            named_parameters=self.model.named_parameters(),
            communication=strategy,
        )

    def loss(self) -> torch.Tensor:
        outputs: torch.Tensor = self.model(self.inputs)
        return (outputs - self.inputs @ self.truth).square().mean()

    def step(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.loss().backward()  # type: ignore[no-untyped-call]
            self.optimizer.step()

    def expect_equal_ranks(self) -> None:
        own = [raw(parameter) for parameter in self.model.parameters()]
        assert all(other == own for other in md.allgather_object(own))


@check(cases=BY_NAME)
def served_training_gets_near_the_solution(name: str) -> None:
    trained = Regression(STRATEGIES[name]())
    start = trained.loss().item()
    for _ in range(2):  # Training goes on after finish().
        trained.step(40)
        trained.optimizer.finish()
        trained.expect_equal_ranks()
    assert trained.loss().item() < start / 20, (trained.loss().item(), start)


@check()
def served_sync_gradients_are_averaged_gradients() -> None:
    plain, served = Regression(None), Regression(STRATEGIES["sync"]())
    for _ in range(5):
        plain.step(1)
        served.step(1)
        served.expect_equal_ranks()
        for mine, wanted in zip(served.model.parameters(), plain.model.parameters(), strict=True):
            expect_near(mine, wanted, 1e-5, "a parameter")


UNEVEN = [
    ("gradients", "join"),
    ("gradients", "finish"),
    ("sync", "join"),
    ("sync", "finish"),
    ("downpour", "finish"),
    ("warm", "join"),
    ("elastic", "finish"),
]


@check(min_size=2, cases=UNEVEN)
def served_ranks_may_take_any_numbers_of_steps(name: str, way: str) -> None:
    trained = Regression(STRATEGIES[name]())
    for _ in range(2):
        trained.step(5 + 6 * md.rank())  # More than SSP allows the last one to be ahead.
        if way == "join":
            md.join()
            raises(lambda: trained.step(1), "finish() after join()")
        trained.optimizer.finish()
        trained.expect_equal_ranks()


@check()
def served_tables_are_told_and_go_with_their_optimizers() -> None:
    trained = Regression(STRATEGIES["gradients"]())
    trained.step(2)
    reason = trained.optimizer._distribution.runs[0].reason()
    assert f"has {4 * (FEATURES + 1)} bytes of them in pieces: 1" in reason, reason
    client, number = table_of(trained)
    md.barrier()
    del trained
    gc.collect()
    raises(
        lambda: client.wait(client.submit_to_all("finish", number)), f"there is no table {number}"
    )


def table_of(trained: Regression) -> tuple[Any, int]:
    """Its client and number."""
    table = trained.optimizer._distribution.runs[0].strategy._table
    return table._client, table._number


@check()
def served_training_goes_on_from_a_saved_state() -> None:
    trained = Regression(STRATEGIES["gradients"]())
    trained.step(30)
    trained.optimizer.finish()
    loss = trained.loss().item()
    state = md.broadcast_object(trained.optimizer.state_dict(), root_rank=0)
    other = Regression(STRATEGIES["gradients"]())
    other.optimizer.load_state_dict(state)
    other.optimizer.load_rank_state_dict(None)
    assert abs(other.loss().item() - loss) < 1e-6
    other.step(30)
    other.optimizer.finish()
    assert other.loss().item() < loss
