"""What the checks of strategies train, on real and on simulated ranks: the same model and data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import batch
from multiproc.reference import expect_near, raw
from mydist.optim.strategies.simulation import SimulatedWorker, Simulation


def outer_adam(tensors: list[torch.Tensor]) -> torch.optim.Optimizer:
    """An outer optimizer of a user."""
    return torch.optim.Adam(tensors, lr=0.05, eps=1e-3)


# By name; their first round ends with step 3, or later.
STRATEGIES: dict[str, Callable[[], Any]] = {
    "keep": lambda: md.LocalSGD(3),
    "reset": lambda: md.LocalSGD(3, momentum="reset"),
    "average": lambda: md.LocalSGD(3, momentum="average"),
    "weighted": lambda: md.LocalSGD(3, weighted=True),
    "once": lambda: md.LocalSGD(None),
    "post": lambda: md.PostLocalSGD(3, start=2),
    "block": lambda: md.BlockMomentum(3, momentum=0.5),
    "nesterov": lambda: md.BlockMomentum(3, momentum=0.5, nesterov=True),
    "slow": lambda: md.SlowMo(3),
    "diloco": lambda: md.DiLoCo(3),
    "streaming": lambda: md.DiLoCo(6, fragments=2, delay=2, mix=0.25),
    "outer": lambda: md.DiLoCo(3, outer=outer_adam),
    "elastic": lambda: md.ElasticAveraging(3),
    "mixture": lambda: {
        "0.*": md.LocalSGD(3),
        "1.*": md.DiLoCo(3),
        "*.bias": md.PostLocalSGD(3, start=2),
        "*": md.SynchronousGradients(),
    },
}
BY_NAME = [(name,) for name in STRATEGIES]


class Trained:
    """A model with running statistics, and the optimizer of one rank. Data differ by rank."""

    def __init__(
        self,
        rank: int,
        wrap: Callable[[torch.nn.Module, torch.optim.Optimizer], Any] = lambda _, plain: plain,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """wrap: makes the optimizer from the model and a plain one."""
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.model = torch.nn.Sequential(
                torch.nn.Linear(4, 5),
                torch.nn.BatchNorm1d(5),
                torch.nn.Tanh(),
                torch.nn.Linear(5, 2),
            ).to(dtype)
        self.rank = rank
        self.dtype = dtype
        self.taken = 0
        plain = torch.optim.SGD(self.model.named_parameters(), lr=0.1, momentum=0.9)
        self.optimizer = wrap(self.model, plain)

    def backward(self, factor: float = 1.0) -> None:
        """Of this rank's next batch; ranks have different numbers of samples."""
        inputs, targets = batch(self.rank, self.taken, rows=3 + 2 * self.rank)
        outputs = self.model(inputs.to(self.dtype))
        (factor * torch.nn.functional.mse_loss(outputs, targets.to(self.dtype))).backward()
        self.taken += 1
        if hasattr(self.optimizer, "count_samples"):
            self.optimizer.count_samples(len(inputs))

    def step(self, count: int = 1) -> None:
        """Some steps of training."""
        for _ in range(count):
            self.optimizer.zero_grad()
            self.backward()
            self.optimizer.step()

    def tensors(self) -> list[torch.Tensor]:
        """Parameters and buffers."""
        return [*self.model.parameters(), *self.model.buffers()]

    def shared(self) -> list[torch.Tensor]:
        """Anchors and momenta of the strategies."""
        return [t for run in self.optimizer._distribution.runs for t in run.job.shared()]

    def expect_at_anchors(self) -> None:
        """Each parameter of a strategy that has begun is its anchor."""
        for run in self.optimizer._distribution.runs:
            if run.has_begun:
                for parameter, anchor in zip(run.job.parameters, run.anchors(), strict=True):
                    assert torch.equal(parameter, anchor), "a parameter is not its anchor"

    def momenta(self) -> list[torch.Tensor]:
        """Of the wrapped optimizer."""
        state = self.optimizer.state
        return [state[p]["momentum_buffer"] for p in self.model.parameters()]

    def bits(self) -> list[bytes]:
        """Of all that decides how training goes on, but for counts."""
        return [raw(t) for t in [*self.tensors(), *self.shared(), *self.momenta()]]


def real(strategy: Any, dtype: torch.dtype = torch.float64, **options: Any) -> Trained:
    """On this rank."""
    prefix = options.pop("prefix", "")

    def wrap(model: torch.nn.Module, plain: torch.optim.Optimizer) -> Any:
        return md.DistributedOptimizer(
            plain,
            named_parameters=[(prefix + n, p) for n, p in model.named_parameters()],
            named_buffers=model.named_buffers(),
            communication=strategy,
            **options,
        )

    return Trained(md.rank(), wrap, dtype)


def simulated(ranks: Sequence[int], strategy: Any, program: Callable[[Trained], Any]) -> Any:
    """What the program returns for each of the ranks, which are workers of a Simulation."""

    def body(worker: SimulatedWorker) -> Any:
        def wrap(model: torch.nn.Module, plain: torch.optim.Optimizer) -> Any:
            return worker.optimizer(plain, strategy, list(model.named_buffers()))

        return program(Trained(ranks[worker.rank], wrap))

    return Simulation(len(ranks)).run(body)


def plain_steps(rank: int, count: int) -> Trained:
    """What a rank has after so many steps alone."""
    trained = Trained(rank)
    trained.step(count)
    return trained


def snapshot(trained: Trained) -> list[torch.Tensor]:
    """Copies of parameters, buffers, anchors and momenta of the strategy."""
    return [t.detach().clone() for t in [*trained.tensors(), *trained.shared()]]


def expect_all_near(
    got: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor], bound: float, what: str
) -> None:
    assert len(got) == len(wanted), f"{what}: {len(got)} tensors, expected {len(wanted)}"
    for index, (mine, other) in enumerate(zip(got, wanted, strict=True)):
        expect_near(mine, other, bound, f"{what}, tensor {index}")


def expect_equal_ranks(
    trained: Trained, what: str = "", process_set: md.ProcessSet = md.global_process_set
) -> None:
    """Parameters, buffers, anchors and momenta of the strategy are bitwise those of all ranks."""
    own = [raw(t) for t in [*trained.tensors(), *trained.shared()]]
    everyone = md.allgather_object(own, process_set=process_set)
    for rank, other in enumerate(everyone):
        different = [i for i, bits in enumerate(other) if bits != everyone[0][i]]
        assert len(other) == len(own) and not different, f"{what}: {rank=} {different=}"


def mean(tensors: Sequence[torch.Tensor], weights: Sequence[float] | None = None) -> torch.Tensor:
    """Weighted by `weights`, equally by default."""
    factors = weights or [1.0] * len(tensors)
    parts = [t.detach() * w for t, w in zip(tensors, factors, strict=True)]
    return torch.stack(parts).sum(0) / sum(factors)
