"""StrategyJob: the job as a strategy sees it: parameters, anchors and means over ranks."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from ...ps.consistency import Consistency
from ...ps.rules import Rule
from ..encoding.keeper import Keeper
from .buffers import Buffers
from .inner_state import InnerState
from .part import Part, Tensors, split

Await = Callable[[], None]


class Average:
    """A mean over ranks that is under way; `wait()` gives the tensors, and raises its error."""

    def __init__(
        self, tensors: Tensors, arrive: Callable[[], None], apply: Callable[[], None]
    ) -> None:
        """The functions wait for the mean, and then write what belongs to the job."""
        self._tensors = tensors
        self._steps = [arrive, apply]

    def arrived(self) -> Tensors:
        """Waits for the mean and changes nothing else. The tensors, now the mean."""
        if len(self._steps) == 2:
            self._steps.pop(0)()
        return self._tensors

    def wait(self) -> Tensors:
        """Waits, writes the buffers, and gives the tensors. A second call only gives them."""
        self.arrived()
        if self._steps:
            self._steps.pop()()
        return self._tensors


class JobTable(Protocol):
    """A tensor on servers, as `md.ps.Table` is one; see there. All calls block."""

    def push(self, gradient: torch.Tensor | None) -> None:
        """Gives the servers a gradient; None is a clock without one."""

    def pull(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """The parameters, once the consistency allows."""

    def push_pull(
        self, gradient: torch.Tensor | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A push, and the parameters after it."""

    def finish(self) -> None:
        """This rank pushes no more."""

    def resume(self) -> None:
        """This rank pushes again; all ranks have finished, and none has pushed since."""

    def set_options(self, **options: Any) -> None:
        """Changes options of the rule. One rank calls it."""

    def explain(self) -> list[tuple[int, int, int]]:
        """For each server its number, how many pieces it holds, and their bytes."""


class StrategyJob(ABC):
    """The ranks that train some parameters together, seen from one rank; owned by one optimizer.

    All methods are called from the thread that trains. Those that say so are collective: every rank
    calls them in the same order. Subclasses add up over real or simulated ranks.

    Attributes:
        rank: this rank's index among them, from 0.
        size: how many they are.
        rounds: means over ranks that this rank has taken part in.
        samples: seen since the last round, as `count_samples()` tells.
        is_behind: whether this rank lacks rounds of the others; its weight is 0 then.
        has_overflow: whether a GradScaler has found that the gradients of this step do not count.
        keeper: what codecs keep of the sums; None without codecs.
    """

    keeper: Keeper | None = None
    rank: int
    size: int

    def __init__(self, buffers: Sequence[torch.Tensor]) -> None:
        self.buffers = Buffers(buffers)
        self.parts: list[Part] = []
        self.rounds = 0
        self.samples = 0
        self.is_behind = self.has_overflow = False
        self._share: set[int] = set()

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Says whose parameters the ranks train. Called once, before anything else."""
        # Weakly: the optimizer owns this job, and must end with its last user.
        self._optimizer = weakref.ref(optimizer)

    def add_parameter(self, parameter: torch.Tensor) -> None:
        """The ranks train this one of the optimizer's parameters."""
        self._share.add(id(parameter))

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups, each with the parameters of this job alone."""
        return [
            {**group, "params": [p for p in group["params"] if id(p) in self._share]}
            for group in self.optimizer.param_groups
        ]

    @property
    def parameters(self) -> Tensors:
        """Those of this job, in the order of the groups."""
        return [parameter for group in self.groups for parameter in group["params"]]

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The wrapped optimizer."""
        optimizer = self._optimizer()
        assert optimizer is not None  # All calls come from it.
        return optimizer

    def rank_text(self, index: int) -> str:
        """The rank of that index, in messages."""
        return f"rank {index}"

    def inner_state(self) -> InnerState:
        """The momenta of the wrapped optimizer."""
        return InnerState(self.optimizer, self.parameters)

    def learning_rates(self, part: Part) -> list[float]:
        """The present one of each flat tensor. Raises ValueError if a parameter group has none."""
        groups = [self.optimizer.param_groups[index] for index in part.groups]
        if any("lr" not in group for group in groups):
            raise ValueError(
                "a parameter group of the optimizer has no 'lr', which this strategy divides by; "
                "use an optimizer with a learning rate, or LocalSGD"
            )
        return [float(group["lr"]) for group in groups]

    def split(self, count: int) -> list[Part]:
        """The parameters as `count` runs of neighbours of about equal size, with their anchors."""
        self.parts = split(self.groups, count)
        return self.parts

    def average(
        self,
        tensors: Sequence[torch.Tensor],
        label: str,
        by_samples: bool = False,
        buffers: bool = True,
    ) -> Tensors:
        """The tensors become their mean over the ranks, in place. Collective; blocks.

        Args:
            tensors: of the same shapes and dtypes on every rank. Ranks in join() do not count.
            label: names what is averaged; the same on every rank for the same shapes.
            by_samples: weighs each rank by the samples that it has seen since the last round.
            buffers: also averages the buffers; integer ones are taken from rank 0.
        """
        return self.start_average(tensors, label, by_samples, buffers).wait()

    def start_average(
        self,
        tensors: Sequence[torch.Tensor],
        label: str,
        by_samples: bool = False,
        buffers: bool = True,
    ) -> Average:
        """As `average`, without waiting for the result. The tensors belong to it until then."""
        weight = 0.0 if self.is_behind else 1.0
        if by_samples:
            # In front of the rest: a change times thousands of samples may not fit its dtype.
            weight *= self.samples
            total = self._total(weight, f"{label}.samples")
            weight = weight / total if total else 0.0
        gives_counters = self.rank == 0 and not self.is_behind
        counts = torch.tensor([weight, float(gives_counters)], dtype=torch.float64, device="cpu")
        shared = self.buffers.read(gives_counters) if buffers else []
        moving = list(tensors)
        fractions = [t for t in [*moving, *shared] if t.is_floating_point() or t.is_complex()]
        if weight != 1.0:
            for tensor in fractions:
                # 0 times NaN is NaN, and what does not count must not spoil the mean.
                tensor.mul_(weight) if weight else tensor.zero_()
        finish = self._start_sum(moving, [*shared, counts], label)

        def arrive() -> None:
            finish()
            if not by_samples:
                for tensor in fractions:
                    tensor.div_(float(counts[0]))

        def apply() -> None:
            self.buffers.write(shared, with_counters=bool(counts[1] > 0))
            self._end_round()

        return Average(moving, arrive, apply)

    def arrived_average(self, tensors: Tensors) -> Average:
        """One that was waited for when it was saved; see `Average.arrived`."""
        return Average(tensors, lambda: None, self._end_round)

    def _end_round(self) -> None:
        self.rounds += 1
        self.samples = 0

    @abstractmethod
    def _total(self, number: float, label: str) -> float:
        """The sum of the ranks' numbers. Collective; blocks."""

    @abstractmethod
    def _start_sum(self, tensors: Tensors, exact: Tensors, label: str) -> Await:
        """Starts to add up over the ranks, in place; `exact` ones are never compressed."""

    @abstractmethod
    def gather(self, row: Sequence[int]) -> list[list[int]]:
        """The rows of all ranks, by index. Collective; blocks."""

    @abstractmethod
    def broadcast(self, tensors: Sequence[torch.Tensor], root: int) -> None:
        """Overwrites the tensors with those of the rank of that index. Collective; blocks."""

    @abstractmethod
    def broadcast_object(self, value: Any, root: int) -> Any:
        """The value of the rank of that index, on all ranks. Collective; blocks."""

    @abstractmethod
    def copy_training(self, root: int) -> None:
        """Parameters and the optimizer's state become those of that rank. Collective; blocks."""

    @abstractmethod
    def table(
        self, label: str, like: torch.Tensor, rule: Rule, consistency: Consistency
    ) -> JobTable:
        """A new table of the parameter server. Collective; later calls on it are not.

        Args:
            label: names it; may be that of an earlier table of this job.
            like: its shape; float32, on the host. Its start values are those of rank 0.
            rule: what the servers do with what is pushed.
            consistency: which reads wait for other ranks.

        The table goes when no rank refers to it any more.
        """

    @abstractmethod
    def step_taken(self) -> None:
        """Called when the optimizer has taken a step, before a round that follows it.

        Of an optimizer with several jobs the first is told.
        """

    def restore(self) -> None:
        """Puts all parameters back to their anchors."""
        for part in self.parts:
            part.reset()

    def shared(self) -> Tensors:
        """The anchors and momenta of all parts."""
        return [flat for part in self.parts for flat in part.shared()]
