"""Strategies whose model is on servers, against their rules in numpy, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from refusals import expect_refusal, refusals

import mydist as md
from mydist.optim.strategies.simulation import SimulatedWorker, Simulation

SIZE, STEPS, ELEMENTS = 3, 12, 5
SECONDS = [1.0, 2.5, 1.0]  # Of a step, by rank.
_random = np.random.default_rng(28)
START = _random.normal(size=ELEMENTS)
CURVATURE = _random.uniform(0.2, 2.0, size=(SIZE, ELEMENTS))
NOISE = _random.normal(size=(STEPS, SIZE, ELEMENTS))
ASYNC = md.ps.Async()


def gradient(rank: int, step: int, x: Any) -> Any:
    return CURVATURE[rank] * x + NOISE[step, rank]


def models(
    strategy: md.Strategy, steps: int = STEPS, dtype: torch.dtype = torch.float64, **options: Any
) -> Any:
    """What each rank has before finish(), and what all have after it."""
    options = {"lr": 0.1, **options}

    def train(worker: SimulatedWorker) -> Any:
        # Two dtypes, so that there are two flat tensors.
        first = torch.nn.Parameter(torch.tensor(START[:2], dtype=dtype))
        second = torch.nn.Parameter(torch.tensor(START[2:], dtype=torch.float32))
        optimizer = worker.optimizer(torch.optim.SGD([first, second], **options), strategy)

        def flat() -> Any:
            return torch.cat([first.detach().double(), second.detach().double()]).numpy()

        for step in range(steps):
            slope = torch.tensor(gradient(worker.rank, step, flat()))
            first.grad, second.grad = slope[:2].to(dtype), slope[2:].float()
            optimizer.step()
        alone = flat()
        optimizer.finish()
        return alone, flat()

    job = Simulation(SIZE, lambda rank, step: SECONDS[rank])
    alone, finished = zip(*job.run(train), strict=True)
    assert all((model == finished[0]).all() for model in finished), "to the last bit"
    return np.array(alone), finished[0]


def events(steps: int = STEPS) -> Iterator[tuple[int, int]]:
    """Rank and step, in the order in which steps end; ranks meet after their first step."""
    heap = [(max(SECONDS), rank, 0) for rank in range(SIZE)]
    while heap:
        seconds, rank, step = heapq.heappop(heap)
        yield rank, step
        if step + 1 < steps:
            heapq.heappush(heap, (seconds + SECONDS[rank], rank, step + 1))


class Rule:
    """A server and its workers, in float64. Gradients are of what a worker has read before."""

    def __init__(self) -> None:
        self.w = START.copy()
        self.x = np.tile(START, (SIZE, 1))

    def run(self) -> tuple[Any, Any]:
        for rank, step in events():
            self.step(rank, step, gradient(rank, step, self.x[rank]))
        before = self.x.copy()
        self.finish()
        return before, self.w

    def step(self, rank: int, step: int, g: Any) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        """What the servers have counts."""


class Descent(Rule):
    def step(self, rank: int, step: int, g: Any) -> None:
        self.w = self.w - 0.1 * g
        self.x[rank] = self.w


class Compensated(Rule):
    def step(self, rank: int, step: int, g: Any) -> None:
        self.w = self.w - 0.1 * (g + 0.5 * g * g * (self.w - self.x[rank]))
        self.x[rank] = self.w


class Momentum(Rule):
    v = 0.0

    def step(self, rank: int, step: int, g: Any) -> None:
        self.v = 0.9 * self.v + g
        self.w = self.w - 0.1 * self.v
        self.x[rank] = self.w


class Poured(Rule):
    """Pushes after two steps, fetches after three."""

    def __init__(self) -> None:
        super().__init__()
        self.sum = np.zeros((SIZE, ELEMENTS))
        self.squares = np.zeros(ELEMENTS)

    def push(self, rank: int) -> None:
        self.squares = self.squares + self.sum[rank] ** 2
        self.w = self.w - 0.2 * self.sum[rank] / (np.sqrt(self.squares) + 1e-10)
        self.sum[rank] = 0

    def step(self, rank: int, step: int, g: Any) -> None:
        self.x[rank] -= 0.1 * g
        self.sum[rank] += g
        if (step + 1) % 2 == 0:
            self.push(rank)
        if (step + 1) % 3 == 0:
            self.x[rank] = self.w


class Drawn(Rule):
    """Elastic averaging after three steps."""

    def step(self, rank: int, step: int, g: Any) -> None:
        self.x[rank] -= 0.1 * g
        if (step + 1) % 3 == 0:
            pull = 0.9 / SIZE * (self.x[rank] - self.w)
            self.x[rank] -= pull
            self.w = self.w + pull


RULES: dict[str, tuple[md.Strategy, type[Rule]]] = {
    "sgd": (md.AsynchronousGradients(md.ps.SGD(lr=0.1), ASYNC), Descent),
    "momentum": (md.AsynchronousGradients(md.ps.SGD(lr=0.1, momentum=0.9), ASYNC), Momentum),
    "dc-asgd": (md.AsynchronousGradients(md.ps.DCASGD(lr=0.1, lam=0.5), ASYNC), Compensated),
    "downpour": (md.Downpour(2, 3, rule=md.ps.Adagrad(lr=0.2)), Poured),
    "elastic": (md.ElasticAveraging(3, synchronous=False), Drawn),
}


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    strategy, rule = RULES[name]
    for mine, wanted in zip(models(strategy), rule().run(), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=0, atol=3e-6)  # Tables are float32.


def test_sync_is_the_mean_of_gradients_bit_for_bit_on_all_ranks() -> None:
    strategy = md.AsynchronousGradients(md.ps.SGD(lr=0.1), md.ps.Sync())
    alone, finished = models(strategy)
    plain, _ = models(md.SynchronousGradients())
    assert (alone == finished).all()
    np.testing.assert_allclose(alone, plain, rtol=0, atol=3e-6)


def lead(strategy: md.Strategy, fewer: int = 0) -> tuple[int, list[Any]]:
    """The most steps that one rank was ahead of another, and what all have in the end.

    Rank 1 is slow, and takes so many steps less.
    """
    done, most = [0] * SIZE, 0

    def train(worker: SimulatedWorker) -> Any:
        nonlocal most
        weight = torch.nn.Parameter(torch.zeros(2))
        optimizer = worker.optimizer(torch.optim.SGD([weight], lr=0.5), strategy)
        for _ in range(2):
            for _ in range(STEPS - fewer * (worker.rank == 1)):
                weight.grad = torch.ones(2)
                optimizer.step()
                done[worker.rank] += 1
                if worker.rank == 0:
                    most = max(most, done[0] - done[1])
            optimizer.finish()
        return weight.tolist()

    models = Simulation(SIZE, lambda rank, step: [1.0, 9.0, 1.0][rank]).run(train)
    return most, models


@pytest.mark.parametrize("bound", [0, 1, 3])
def test_ssp_holds_a_rank_that_is_ahead(bound: int) -> None:
    most, finished = lead(md.AsynchronousGradients(md.ps.SGD(lr=0.5), md.ps.SSP(bound)))
    # Its step ends when the slow one's push is applied, which comes back later.
    assert bound <= most <= bound + 1
    assert finished == [[-0.5 * 2 * SIZE * STEPS] * 2] * SIZE


@pytest.mark.parametrize("consistency", [md.ps.SSP(1), md.ps.Sync(), ASYNC])
def test_a_rank_with_fewer_steps_holds_no_other_and_goes_on_after_finish(consistency: Any) -> None:
    strategy = md.AsynchronousGradients(md.ps.SGD(lr=0.5), consistency)
    _, finished = lead(strategy, fewer=5)
    pushes = STEPS if consistency == md.ps.Sync() else SIZE * STEPS - 5
    assert finished == [[-0.5 * 2 * pushes] * 2] * SIZE


def one(
    strategy: md.Strategy, body: Callable[[Any, torch.nn.Parameter], Any], **options: Any
) -> Any:
    """What the function returns for an optimizer and its parameter on one worker."""

    def train(worker: SimulatedWorker) -> Any:
        weight = torch.nn.Parameter(torch.zeros(()))
        plain = torch.optim.SGD([weight], **{"lr": 1.0, **options})
        return body(worker.optimizer(plain, strategy), weight)

    return Simulation(1).run(train)[0]


def step(optimizer: Any, weight: torch.nn.Parameter, slope: float = 1.0) -> float:
    weight.grad = torch.full((), slope)
    optimizer.step()
    return weight.item()


GRADIENTS = md.AsynchronousGradients(md.ps.SGD(lr=1.0, momentum=0.5))


def test_the_rate_follows_a_scheduler() -> None:
    def body(optimizer: Any, weight: torch.nn.Parameter) -> list[float]:
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.25)
        path = []
        for _ in range(3):
            path.append(step(optimizer, weight))
            scheduler.step()
        return path

    plain = md.AsynchronousGradients(md.ps.SGD(lr=1.0))
    assert one(plain, body) == [-1.0, -1.25, -1.3125]


def test_a_closure_gives_the_loss_and_the_gradient() -> None:
    def body(optimizer: Any, weight: torch.nn.Parameter) -> Any:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (weight - 2).square()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        return optimizer.step(closure).item(), weight.item()

    assert one(GRADIENTS, body) == (4.0, 4.0)


def test_a_step_that_overflows_counts_and_changes_nothing() -> None:
    def body(optimizer: Any, weight: torch.nn.Parameter) -> list[float]:
        path = [step(optimizer, weight)]
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(8.0), torch.tensor(1.0)
        path.append(step(optimizer, weight, float("inf")))
        optimizer.found_inf = torch.tensor(0.0)
        return [*path, step(optimizer, weight, 8.0)]

    assert one(GRADIENTS, body) == [-1.0, -1.0, -2.5]
    assert one(md.Downpour(rule=md.ps.SGD(lr=1.0)), body) == [-1.0, -1.0, -2.0]


@pytest.mark.parametrize("strategy", [GRADIENTS, md.Downpour(2, 2, rule=md.ps.SGD(lr=1.0))])
def test_a_gradient_that_is_not_finite_changes_nothing(strategy: md.Strategy) -> None:
    def body(bad: float | None) -> Callable[[Any, torch.nn.Parameter], list[float]]:
        def steps(optimizer: Any, weight: torch.nn.Parameter) -> list[float]:
            path = [step(optimizer, weight)]
            if bad is not None:
                with pytest.raises(
                    ValueError, match="on rank 0: the gradient of .* is .* at index"
                ):
                    step(optimizer, weight, bad)
            return [*path, weight.item(), *(step(optimizer, weight) for _ in range(3))]

        return steps

    for bad in (float("nan"), -float("inf")):
        assert one(strategy, body(bad)) == one(strategy, body(None))


def test_finish_twice_changes_nothing() -> None:
    def body(optimizer: Any, weight: torch.nn.Parameter) -> list[float]:
        path = [step(optimizer, weight)]
        for _ in range(2):
            optimizer.finish()
            path.append(weight.item())
        return [*path, step(optimizer, weight)]

    for consistency in (md.ps.SSP(0), md.ps.Sync()):
        strategy = md.AsynchronousGradients(md.ps.SGD(lr=1.0, momentum=0.5), consistency)
        assert one(strategy, body) == [-1.0, -1.0, -1.0, -2.5], "the momentum stays"


def test_finish_pushes_what_downpour_has_summed() -> None:
    def body(optimizer: Any, weight: torch.nn.Parameter) -> list[float]:
        for _ in range(5):
            step(optimizer, weight)
        optimizer.finish()
        return [weight.item(), step(optimizer, weight)]

    strategy = md.Downpour(4, 4, rule=md.ps.SGD(lr=0.5))
    assert one(strategy, body) == [-2.5, -3.5]


@pytest.mark.parametrize("name", RULES)
def test_a_saved_state_goes_on_from_what_was_read_last(name: str) -> None:
    strategy, _ = RULES[name]

    def train(worker: SimulatedWorker) -> tuple[list[float], list[float]]:
        weight = torch.nn.Parameter(torch.ones(2))
        optimizer = worker.optimizer(torch.optim.SGD([weight], lr=0.1), strategy)
        for _ in range(6):
            weight.grad = torch.ones(2)
            optimizer.step()
        model = optimizer._distribution.runs[0].strategy._seen.tolist()
        state = worker.meet("share", optimizer.state_dict(), lambda states: states[0])
        other = torch.nn.Parameter(torch.zeros(2))
        optimizer = worker.optimizer(torch.optim.SGD([other], lr=0.1), strategy)
        optimizer.load_state_dict(state)
        optimizer.load_rank_state_dict(None)  # As in a job of another size.
        loaded = other.tolist()
        other.grad = torch.zeros(2)
        optimizer.step()
        optimizer.finish()
        return worker.meet("share", model, lambda models: models[0]), [*loaded, *other.tolist()]

    for model, loaded in Simulation(SIZE).run(train):
        assert loaded == pytest.approx([*model, *model])


def step_of(optimizer: Any, strategy: md.Strategy) -> None:
    """One step on one worker."""

    def program(worker: SimulatedWorker) -> None:
        wrapped = worker.optimizer(optimizer, strategy)
        for group in wrapped.param_groups:
            for parameter in group["params"]:
                parameter.grad = torch.ones_like(parameter)
        wrapped.step()

    Simulation(1).run(program)


def parameter(dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.zeros(2, dtype=dtype))


WRONG = refusals(
    """
md.AsynchronousGradients('sgd')
    TypeError: AsynchronousGradients: rule is 'sgd' (str), expected a rule such as md.ps.SGD
md.AsynchronousGradients(md.ps.SGD(lr=1), 3)
    TypeError: AsynchronousGradients: consistency is 3 (int), expected md.ps.Sync(), md.ps.SSP(3)
md.Downpour(0)
    ValueError: Downpour: push_every is 0, expected an int of at least 1
md.Downpour(1, 1.5)
    ValueError: Downpour: fetch_every is 1.5, expected an int of at least 1
md.Downpour(warm_start_steps=-1)
    ValueError: Downpour: warm_start_steps is -1, expected an int of at least 0
md.Downpour(rule=0.1)
    TypeError: Downpour: rule is 0.1 (float), expected a rule such as md.ps.SGD(lr=0.1)
md.ElasticAveraging(synchronous=0)
    ValueError: ElasticAveraging: synchronous is 0, expected True or False
step_of(torch.optim.SGD([parameter()], 0.1), md.ElasticAveraging(1, beta=1, synchronous=False))
    ValueError: ElasticAveraging(synchronous=False): beta / size is 1, expected below 1
step_of(torch.optim.SGD([parameter()], lr=0.1, momentum=0.9), GRADIENTS)
    ValueError: the optimizer has momentum=0.9, which has no effect, because the servers take the
step_of(torch.optim.AdamW([parameter()], lr=1.0, betas=(0.5, 0.9)), GRADIENTS)
    ValueError: the optimizer has betas=(0.5, 0.9), which…leave the optimizer's betas at (0.9, 0.9
step_of(torch.optim.SGD([parameter()], lr=0.1), GRADIENTS)
    ValueError: AsynchronousGradients: the optimizer has lr=0.1 and the rule lr=1.0; give both the
step_of(torch.optim.SGD([{'params': [parameter()], 'lr': r} for r in (0.1, 1.0)], 1.0), GRADIENTS)
    ValueError: the optimizer's groups have the rates [0.1, 1.0], and the rule has one for all
step_of(torch.optim.SGD([parameter(torch.complex64)], lr=1.0), GRADIENTS)
    ValueError: a parameter is of dtype torch.complex64, and the servers hold float32; leave it out
step_of(torch.optim.SGD([parameter()], lr=1.0), md.AsynchronousGradients(md.ps.SGD(lr=-1.0)))
    ValueError: the optimizer has lr=1.0 and the rule lr=-1.0
step_of(torch.optim.SGD([parameter()]), md.AsynchronousGradients(md.ps.AdaDelay(smoothness=0, c=1)))
    ValueError: rule 'ada_delay': smoothness is 0, expected a number above 0
"""
)


@pytest.mark.parametrize(("call", "error"), WRONG)
def test_wrong_settings(call: str, error: str) -> None:
    expect_refusal(call, error, globals())


# Copies of the parameters of float64, and further ones of float32.
COPIES = {"sgd": 1, "momentum": 1, "dc-asgd": 1, "downpour": 2, "elastic": 1}


@pytest.mark.parametrize("name", RULES)
def test_memory_is_what_the_documentation_promises(name: str) -> None:
    def train(worker: SimulatedWorker) -> tuple[int, int]:
        weight = torch.nn.Parameter(torch.zeros(100, dtype=torch.float64))
        optimizer = worker.optimizer(torch.optim.SGD([weight], lr=0.1), RULES[name][0])
        run = optimizer._distribution.runs[0]
        before = run.strategy.bytes()
        optimizer.step()
        return before, run.strategy.bytes()

    assert Simulation(SIZE).run(train)[0] == (0, COPIES[name] * 800 + 400)


def test_an_optimizer_without_parameters() -> None:
    for strategy, _ in RULES.values():

        def program(worker: SimulatedWorker, strategy: md.Strategy = strategy) -> None:
            optimizer = worker.optimizer(torch.optim.SGD([{"params": []}], lr=0.1), strategy)
            for _ in range(3):
                optimizer.step()
            optimizer.finish()

        Simulation(2).run(program)
