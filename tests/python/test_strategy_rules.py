"""Each strategy against its rule in numpy, on simulated ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy_rules as rules
import pytest
import torch
from numpy_rules import CURVATURE, CUTS, GROUPS, NOISE, SAMPLES, SHAPES, START, STEPS

import mydist as md
from mydist.optim.strategies.simulation import SimulatedWorker, Simulation

# In the middle of a round and at its end, for rounds of three steps and of four.
FINISHES = (5, 8, 12)

SGD = partial(torch.optim.SGD, lr=0.5, momentum=0.4)
ADAM = partial(torch.optim.Adam, lr=0.05)


class Model:
    """Parameters, in two groups with rates of their own, that start alike on every rank."""

    def __init__(
        self,
        worker: SimulatedWorker,
        strategy: md.Strategy,
        dtype: torch.dtype = torch.float64,
        momentum: float = 0.0,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> None:
        self.rank = worker.rank
        pieces = [torch.tensor(START[a:b]) for a, b in zip(CUTS, CUTS[1:], strict=False)]
        self.parameters = [
            torch.nn.Parameter(piece.reshape(shape).to(dtype))
            for piece, shape in zip(pieces, SHAPES, strict=True)
        ]
        self.parameters[0].data = self.parameters[0].data.to(memory_format=memory_format)
        groups = [{"params": [self.parameters[i] for i in group]} for group in GROUPS]
        sgd = torch.optim.SGD(groups, lr=0.1, momentum=momentum)
        self.optimizer = worker.optimizer(sgd, strategy)

    def step(self, step: int) -> None:
        for group, rate in zip(self.optimizer.param_groups, rules.rates(step), strict=True):
            group["lr"] = rate
        gradient = torch.tensor(CURVATURE[self.rank]) * self.flat() + torch.tensor(
            NOISE[step, self.rank]
        )
        for parameter, a, b in zip(self.parameters, CUTS, CUTS[1:], strict=False):
            own = gradient[a:b].reshape(parameter.shape).to(parameter.dtype)
            parameter.grad = torch.empty_like(parameter).copy_(own)
        self.optimizer.count_samples(int(SAMPLES[step, self.rank]))
        self.optimizer.step()

    def flat(self) -> torch.Tensor:
        return torch.cat([p.detach().reshape(-1).double() for p in self.parameters])


def path_of(
    strategy: md.Strategy, size: int, finishes: Sequence[int] = FINISHES, **options: Any
) -> Any:
    """The models of all ranks after each step: an array of steps, ranks and elements."""

    def train(worker: SimulatedWorker) -> Any:
        model, path = Model(worker, strategy, **options), []
        for step in range(STEPS):
            model.step(step)
            if step + 1 in finishes:
                model.optimizer.finish()
            path.append(model.flat().numpy())
        return path

    return np.array(Simulation(size).run(train)).swapaxes(0, 1)


# By name: the strategy, its rule, and the momentum of the local steps.
RULES: dict[str, tuple[md.Strategy, type[rules.Rule], float]] = {
    "synchronous": (md.SynchronousGradients(), rules.Synchronous, 0.9),
    "local": (md.LocalSGD(3), rules.Averaged, 0.0),
    "local of one": (md.LocalSGD(1), rules.Synchronous, 0.0),
    "local once": (md.LocalSGD(None), rules.AveragedOnce, 0.0),
    "momentum kept": (md.LocalSGD(3), rules.Averaged, 0.9),
    "momentum reset": (md.LocalSGD(3, momentum="reset"), rules.MomentumReset, 0.9),
    "momentum averaged": (md.LocalSGD(3, momentum="average"), rules.MomentumAveraged, 0.9),
    "weighted": (md.LocalSGD(3, weighted=True), rules.Weighted, 0.0),
    "post-local": (md.PostLocalSGD(3, start=4), rules.PostLocal, 0.9),
    "block": (md.BlockMomentum(3), rules.Block, 0.0),
    "block half": (md.BlockMomentum(3, momentum=0.5), rules.BlockHalf, 0.9),
    "block nesterov": (md.BlockMomentum(3, nesterov=True), rules.BlockNesterov, 0.0),
    "slow": (md.SlowMo(3), rules.Slow, 0.9),
    "slow half": (md.SlowMo(3, beta=0.4, alpha=0.5), rules.SlowHalf, 0.0),
    "outer": (md.DiLoCo(4), rules.Outer, 0.0),
    "outer plain": (md.DiLoCo(4, outer=SGD), rules.OuterPlain, 0.9),
    "outer adam": (md.DiLoCo(4, outer=ADAM), rules.OuterAdam, 0.0),
    "outer fragments": (md.DiLoCo(4, fragments=2), rules.OuterFragments, 0.0),
    "outer late": (md.DiLoCo(4, delay=3), rules.OuterLate, 0.0),
    "outer streaming": (
        md.DiLoCo(4, fragments=2, delay=1, mix=0.25),
        rules.OuterStreaming,
        0.0,
    ),
    "elastic": (md.ElasticAveraging(3), rules.Elastic, 0.0),
    "elastic half": (md.ElasticAveraging(3, beta=0.5), rules.ElasticHalf, 0.9),
}


def expected(name: str, size: int, finishes: Sequence[int] = FINISHES) -> Any:
    _, rule, momentum = RULES[name]
    return np.array(list(rule(size, momentum).path(finishes)))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("name", RULES)
def test_rule(name: str, size: int) -> None:
    strategy, _, momentum = RULES[name]
    path = path_of(strategy, size, momentum=momentum)
    np.testing.assert_allclose(path, expected(name, size), rtol=0, atol=1e-12)
    for step in FINISHES:
        assert (path[step - 1] == path[step - 1][0]).all(), "to the last bit after finish()"


@pytest.mark.parametrize("name", RULES)
def test_without_finish_rounds_keep_their_time(name: str) -> None:
    strategy, _, momentum = RULES[name]
    path = path_of(strategy, 3, (), momentum=momentum)
    np.testing.assert_allclose(path, expected(name, 3, ()), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
def test_channels_last_changes_nothing(name: str) -> None:
    strategy, _, momentum = RULES[name]
    paths = [
        path_of(strategy, 2, momentum=momentum, memory_format=memory_format)
        for memory_format in (torch.contiguous_format, torch.channels_last)
    ]
    assert (paths[0] == paths[1]).all()


def test_a_parameter_stays_channels_last() -> None:
    def train(worker: SimulatedWorker) -> None:
        model = Model(worker, md.BlockMomentum(2), memory_format=torch.channels_last)
        before, stride = model.parameters[0].data_ptr(), model.parameters[0].stride()
        assert stride != torch.empty(SHAPES[0]).stride()
        for step in range(3):
            model.step(step)
        model.optimizer.finish()
        assert (model.parameters[0].data_ptr(), model.parameters[0].stride()) == (before, stride)

    Simulation(2).run(train)


# Of bfloat16: 2^-9 of values around 2, thirteen steps long, and as much again in the gradients.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.06}


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("name", RULES)
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    strategy, _, momentum = RULES[name]
    path = path_of(strategy, 3, dtype=dtype, momentum=momentum)
    np.testing.assert_allclose(path, expected(name, 3), rtol=0, atol=TOLERANCES[dtype])
    assert (path[STEPS - 2] == path[STEPS - 2][0]).all()


def test_dtypes_side_by_side() -> None:
    def train(worker: SimulatedWorker) -> list[list[float]]:
        dtypes = [torch.float64, torch.bfloat16, torch.bfloat16, torch.float32]
        parameters = [torch.nn.Parameter(torch.ones(2, dtype=dtype)) for dtype in dtypes]
        optimizer = worker.optimizer(torch.optim.SGD(parameters, lr=0.5), md.LocalSGD(2))
        for _ in range(2):
            for index, parameter in enumerate(parameters):
                parameter.grad = torch.full_like(parameter, (worker.rank + 1) * (index + 1))
            optimizer.step()
        assert [parameter.dtype for parameter in parameters] == dtypes
        return [parameter.tolist() for parameter in parameters]

    # The mean of 1 and 2, times 1 to 4.
    means = [[1 - 1.5 * factor] * 2 for factor in (1, 2, 3, 4)]
    assert Simulation(2).run(train) == [means, means]


# With every=1: the mean of local steps from one point is the step of the mean gradient.
EACH_STEP: dict[str, Callable[[], md.Strategy]] = {
    "LocalSGD": lambda: md.LocalSGD(1, momentum="average"),
    "PostLocalSGD": lambda: md.PostLocalSGD(1, start=0),
    "BlockMomentum": lambda: md.BlockMomentum(1, momentum=0.0),
    "SlowMo": lambda: md.SlowMo(1, beta=0.0),
    "DiLoCo": lambda: md.DiLoCo(1, outer=partial(torch.optim.SGD, lr=1.0)),
}


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize("name", EACH_STEP)
def test_a_round_in_each_step_is_synchronous_sgd(
    name: str, dtype: torch.dtype, tolerance: float
) -> None:
    momentum = 0.9 if name == "LocalSGD" else 0.0
    strategies = (EACH_STEP[name](), md.SynchronousGradients())
    local, synchronous = (path_of(s, 4, dtype=dtype, momentum=momentum) for s in strategies)
    np.testing.assert_allclose(local, synchronous, rtol=0, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_local_sgd_of_one_step_has_the_bits_of_the_synchronous_path(dtype: torch.dtype) -> None:
    paths = [
        path_of(strategy, 4, dtype=dtype, momentum=0.9)
        for strategy in (md.LocalSGD(1), md.SynchronousGradients())
    ]
    assert (paths[0] == paths[1]).all()


def test_slow_momentum_is_block_momentum_while_the_rate_is_constant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rules, "rates", lambda step: [0.1, 0.04])
    slow, block = path_of(md.SlowMo(3, beta=0.75), 4), path_of(md.BlockMomentum(3), 4)
    np.testing.assert_allclose(slow, block, rtol=0, atol=1e-12)


def test_slow_momentum_at_a_rate_of_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "rates", lambda step: [0.1, 0.04] if step != 5 else [0.1, 0.0])
    # The round follows this step; what the steps before it have moved is not lost.
    path = path_of(md.SlowMo(3, alpha=0.5, beta=0.4), 3, ())
    np.testing.assert_allclose(path, expected("slow half", 3, ()), rtol=0, atol=1e-12)


def test_slow_momentum_at_a_rate_that_float16_can_hardly_hold() -> None:
    def train(worker: SimulatedWorker) -> list[float]:
        weight = torch.nn.Parameter(torch.ones(2, dtype=torch.float16))
        optimizer = worker.optimizer(torch.optim.SGD([weight], lr=1e-7), md.SlowMo(1))

        def closure() -> None:  # A step that SGD would round to nothing.
            with torch.no_grad():
                weight.sub_(1e-3 * (worker.rank + 0.5))

        for _ in range(2):
            optimizer.step(closure)
        return weight.tolist()

    # The mean change is 1e-3; then 1e-3 more, and 0.7e-3 of momentum.
    for of_rank in Simulation(2).run(train):
        assert of_rank == pytest.approx([1 - 2.7e-3] * 2, abs=5e-4)


# When it averages buffers in rounds: the mean after a round of two steps, and after finish().
BUFFERS = {
    "local": (md.LocalSGD(2), 4.0, 6.0),
    "weighted": (md.LocalSGD(2, weighted=True), 5.0, 7.5),
    "block": (md.BlockMomentum(2), 4.0, 6.0),
    "slow": (md.SlowMo(2), 4.0, 6.0),
    "outer": (md.DiLoCo(2), 4.0, 6.0),
    "outer late": (md.DiLoCo(2, delay=1), None, 6.0),
    "elastic": (md.ElasticAveraging(2), None, 6.0),
    "synchronous": (md.SynchronousGradients(), None, 6.0),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_buffers(name: str) -> None:
    """Averages are averaged, in each round or in finish() only; counters become those of rank 0."""
    strategy, after_round, after_finish = BUFFERS[name]

    def train(worker: SimulatedWorker) -> None:
        rank = worker.rank
        weight = torch.nn.Parameter(torch.zeros(3))
        mean, counter, mask = torch.zeros(2), torch.tensor(0), torch.tensor([rank == 1])
        named = [("mean", mean), ("counter", counter), ("mask", mask)]
        optimizer = worker.optimizer(torch.optim.SGD([weight], lr=0.1), strategy, named)

        def step() -> tuple[float, float, int]:
            mean.add_(2 * rank + 1)  # 1 on rank 0 and 3 on rank 1.
            counter.add_(rank + 5)
            weight.grad = torch.ones(3)
            optimizer.count_samples(2 * rank + 1)
            optimizer.step()
            return (*mean.tolist(), counter.item())

        step()
        if after_round is None:
            own = 2.0 * (2 * rank + 1)
            assert step() == (own, own, 2 * (rank + 5))
        else:
            assert step() == (after_round, after_round, 2 * 5)
        step()
        optimizer.finish()
        assert (*mean.tolist(), counter.item()) == (after_finish, after_finish, 3 * 5)
        assert mask.item() is (rank == 1)

    Simulation(2).run(train)
