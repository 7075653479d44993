"""Strategies: wrong settings, wrong use, and one that a user has written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from refusals import expect_refusal, refusals

import mydist as md
from mydist.optim.strategies.simulation import SimulatedWorker, Simulation


def step_with(strategy: md.Strategy, optimizer: Any = torch.optim.SGD, **options: Any) -> None:
    """One step of two parameters on one simulated worker."""

    def program(worker: SimulatedWorker) -> None:
        parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
        wrapped = worker.optimizer(optimizer(parameters, **options), strategy)
        for parameter in parameters:
            parameter.grad = torch.ones(2)
        wrapped.step()

    Simulation(1).run(program)


class WithoutRate(torch.optim.Optimizer):
    """Takes no steps, at no rate."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    def step(self, closure: Any = None) -> None:
        """Does nothing."""


WRONG = refusals(
    """
md.LocalSGD(0)
    ValueError: LocalSGD: every is 0, expected an int of at least 1
md.LocalSGD(2.0)
    ValueError: LocalSGD: every is 2.0, expected an int of at least 1
md.LocalSGD(True)
    ValueError: LocalSGD: every is True, expected an int of at least 1
md.LocalSGD(8, momentum='sum')
    ValueError: LocalSGD: momentum is 'sum', expected one of 'keep', 'reset', 'average'
md.LocalSGD(8, weighted='no')
    ValueError: LocalSGD: weighted is 'no', expected True or False
md.BlockMomentum(8, nesterov=1)
    ValueError: BlockMomentum: nesterov is 1, expected True or False
md.PostLocalSGD(0, 5)
    ValueError: PostLocalSGD: every is 0, expected an int of at least 1
md.PostLocalSGD(None, 5)
    ValueError: PostLocalSGD: every is None, expected an int of at least 1
md.PostLocalSGD(8, -1)
    ValueError: PostLocalSGD: start is -1, expected an int of at least 0
md.BlockMomentum(0)
    ValueError: BlockMomentum: every is 0, expected an int of at least 1
md.BlockMomentum(8, momentum=1)
    ValueError: BlockMomentum: momentum is 1, expected a number from 0 to below 1
md.BlockMomentum(8, momentum='0.9')
    ValueError: BlockMomentum: momentum is '0.9', expected a number from 0 to below 1
md.SlowMo(None)
    ValueError: SlowMo: every is None, expected an int of at least 1
md.SlowMo(8, beta=1.0)
    ValueError: SlowMo: beta is 1.0, expected a number from 0 to below 1
md.SlowMo(8, alpha=0)
    ValueError: SlowMo: alpha is 0, expected a number above 0
md.SlowMo(8, alpha=float('inf'))
    ValueError: SlowMo: alpha is inf, expected a number above 0
md.DiLoCo(0)
    ValueError: DiLoCo: every is 0, expected an int of at least 1
md.DiLoCo(8, outer=0.7)
    ValueError: DiLoCo: outer is 0.7, expected a function that makes an optimizer for a list of
md.DiLoCo(8, fragments=0)
    ValueError: DiLoCo: fragments is 0, expected an int of at least 1
md.DiLoCo(8, fragments=3)
    ValueError: DiLoCo(every=8, fragments=3, …expected fragments to divide every, and delay below
md.DiLoCo(8, delay=-1)
    ValueError: DiLoCo: delay is -1, expected an int of at least 0
md.DiLoCo(8, fragments=2, delay=4)
    ValueError: …delay=4, …expected fragments to divide every, and delay below every / fragments
md.DiLoCo(8, mix=1.5)
    ValueError: DiLoCo: mix is 1.5, expected a number from 0 to 1
md.DiLoCo(8, mix=float('nan'))
    ValueError: DiLoCo: mix is nan, expected a number from 0 to 1
md.ElasticAveraging(0)
    ValueError: ElasticAveraging: every is 0, expected an int of at least 1
md.ElasticAveraging(beta=0)
    ValueError: ElasticAveraging: beta is 0, expected a number above 0 and up to 1
md.ElasticAveraging(beta=1.1)
    ValueError: ElasticAveraging: beta is 1.1, expected a number above 0 and up to 1
step_with(md.DiLoCo(6, fragments=3))
    ValueError: the optimizer has 2 parameters, expected at least 3, one for each fragment; use
step_with(md.SlowMo(2), WithoutRate)
    ValueError: a parameter group of the optimizer has no 'lr', which this strategy divides by
step_with(md.LocalSGD(2, weighted=True))
    ValueError: LocalSGD(weighted=True): step() was called without count_samples(); call
"""
)


@pytest.mark.parametrize(("call", "error"), WRONG)
def test_wrong_settings(call: str, error: str) -> None:
    expect_refusal(call, error, globals())


@pytest.mark.parametrize(
    ("outer", "shown"),
    [(lambda tensors: None, "None (NoneType)"), (torch.optim.LBFGS, "(LBFGS)")],
)
def test_what_outer_makes_is_checked_at_the_first_step(outer: Any, shown: str) -> None:
    weight = torch.nn.Parameter(torch.zeros(2))

    def program(worker: SimulatedWorker) -> None:
        optimizer = worker.optimizer(torch.optim.SGD([weight], 0.1), md.DiLoCo(5, outer=outer))
        optimizer.step()

    with pytest.raises(TypeError, match="other than LBFGS") as caught:
        Simulation(1).run(program)
    assert shown in str(caught.value)


def test_a_parameter_of_integers_has_no_mean() -> None:
    table = torch.nn.Parameter(torch.arange(3), requires_grad=False)

    def program(worker: SimulatedWorker) -> None:
        worker.optimizer(torch.optim.SGD([table], 0.1), md.LocalSGD(2)).step()

    with pytest.raises(ValueError, match="dtype torch.int64, which has no mean; leave it out"):
        Simulation(1).run(program)


def test_an_optimizer_without_parameters() -> None:
    """As of a script that trains a part of its model which happens to be empty."""
    for strategy in (md.LocalSGD(2), md.BlockMomentum(2), md.SlowMo(2), md.ElasticAveraging(2)):

        def program(worker: SimulatedWorker, strategy: md.Strategy = strategy) -> int:
            optimizer = worker.optimizer(torch.optim.SGD([{"params": []}], lr=0.1), strategy)
            for _ in range(3):
                optimizer.step()
            optimizer.finish()
            return int(optimizer._distribution.runs[0].job.rounds)

        assert Simulation(2).run(program) == [2, 2]


def test_what_weighs_nothing_does_not_spoil_the_mean() -> None:
    def program(worker: SimulatedWorker) -> float:
        weight = torch.nn.Parameter(torch.zeros(()))
        strategy = md.LocalSGD(1, weighted=True)
        optimizer = worker.optimizer(torch.optim.SGD([weight], lr=1.0), strategy)
        weight.grad = torch.tensor(float("nan") if worker.rank else 2.0)
        optimizer.count_samples(0 if worker.rank else 5)
        optimizer.step()
        return weight.item()

    assert Simulation(2).run(program) == [-2.0, -2.0]


def test_a_round_that_failed_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(worker: SimulatedWorker) -> list[float]:
        weight, path = torch.nn.Parameter(torch.zeros(())), []
        strategy = md.BlockMomentum(2, momentum=0.5, nesterov=True)
        optimizer = worker.optimizer(torch.optim.SGD([weight], lr=1.0), strategy)

        def two_steps() -> None:
            for _ in range(2):
                weight.grad = torch.ones(())
                optimizer.step()

        two_steps()
        path.append(weight.item())
        with monkeypatch.context() as broken:
            broken.setattr(optimizer._distribution.runs[0].job, "average", lost)
            with pytest.raises(md.MydistError):
                two_steps()
        path.append(weight.item())
        two_steps()
        return [*path, weight.item()]

    def lost(*_: Any) -> None:
        raise md.MydistError("lost")

    # W is -2, and the round starts at -2 + 0.5 * -2; then it starts at W, and D is 0.5 * -2 - 2.
    assert Simulation(1).run(program) == [[-3.0, -2.0, -2 - 3 + 0.5 * -3]]


@dataclass(eq=False)
class Shrunk(md.Strategy):
    """Local steps; every `every` of them all ranks go to the mean, shrunk towards the anchor."""

    every: int
    shrink: float = 0.5

    def after_step(self, step: int) -> None:
        if step % self.every == 0:
            (part,) = self.parts
            for anchor, change in zip(
                part.anchor, self.job.average(part.change(), "round"), strict=True
            ):
                anchor.add_(change, alpha=self.shrink)
            part.reset()


def test_a_strategy_of_a_user() -> None:
    def program(worker: SimulatedWorker) -> list[float]:
        weight, path = torch.nn.Parameter(torch.zeros(())), []
        optimizer = worker.optimizer(torch.optim.SGD([weight], lr=1.0), Shrunk(2))
        for _ in range(3):
            weight.grad = torch.full((), worker.rank + 1.0)
            optimizer.step()
            path.append(weight.item())
        optimizer.finish()
        return [*path, weight.item()]

    # Two steps of 1 and of 2 make 3 in the mean, of which half is taken.
    assert Simulation(2).run(program) == [[-1, -1.5, -2.5, -3], [-2, -1.5, -3.5, -3]]
    assert Shrunk(2).describe() == "Shrunk(every=2, shrink=0.5)"
