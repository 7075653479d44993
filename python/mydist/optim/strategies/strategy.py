"""Strategy: when ranks communicate while they train, and what they make of it. No network here.

A strategy is the rule of one algorithm. It sees a StrategyJob, which stands for real ranks or for
simulated ones. docs/extending.md shows how to write one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

import torch

from ...job.error_text import wrong_type
from .job import StrategyJob
from .part import Part

__all__ = ["Strategy"]


class Strategy:
    """The base of all strategies. Pass one to `DistributedOptimizer(communication=…)`.

    Settings are the fields of a dataclass; they must be equal on all ranks. An optimizer works on
    a copy, so one strategy object may serve several optimizers. All calls come from the thread that
    trains, at the same points on all ranks.

    Attributes:
        job: the job, from `begin` on.
        parts: of the parameters; none before `begin`.
        takes_inner_steps: whether a local step is one of the wrapped optimizer; else it leaves the
            gradients to `after_step`.
        pushes_gradients: whether gradients of local steps go to servers, which take finite ones
            only. A step with others is refused before it changes anything.
    """

    job: StrategyJob
    parts: Sequence[Part] = ()
    takes_inner_steps: ClassVar[bool] = True
    pushes_gradients: ClassVar[bool] = False

    def begin(self, job: StrategyJob) -> None:
        """Called once, before the first local step. Parameters are equal on all ranks then."""
        self.job = job
        self.parts = job.split(1)

    def before_step(self, step: int) -> bool:
        """Whether the next step stays local; False reduces its gradients as usual.

        Once it is True, it stays True for all later steps.

        Args:
            step: how many steps the optimizer has taken.
        """
        return True

    def after_step(self, step: int) -> None:
        """Called after every local step; a round happens here.

        Args:
            step: how many local steps there were since `begin` or the last `finish`; at least 1.
        """
        raise NotImplementedError

    def refuse(self) -> None:
        """Lets the other ranks go on without this step, which only this rank does not take."""

    def leave(self) -> None:
        """Lets the other ranks go on without this one. Called when `join()` begins, and it takes no
        step before `finish`."""

    def settle(self) -> None:
        """Ends what is under way. Called by `finish()`, before ranks compare their progress."""

    def finish(self) -> None:
        """Moves the anchors to the model to evaluate.

        Called when some rank has taken a local step since `begin` or the last `finish`. All
        parameters become the anchors afterwards. By default the anchors become the mean of the
        ranks' parameters.
        """
        changes = [part.change() for part in self.parts]
        self.job.average([flat for flats in changes for flat in flats], "finish")
        for part, change in zip(self.parts, changes, strict=True):
            add(part.anchor, change)

    def finished(self) -> None:
        """Called when all parameters have become the anchors: by `finish()`, or after an error."""

    def state_dict(self) -> dict[str, Any]:
        """What is to be saved beyond anchors, momenta and counts of steps."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` of the same strategy gave."""

    def bytes(self) -> int:
        """What anchors and momenta take on this rank, in bytes."""
        return sum(flat.nbytes for part in self.parts for flat in part.shared())

    def places(self) -> str:
        """Where else than on this rank its model is; a part of a sentence, or nothing."""
        return ""

    def describe(self) -> str:
        """The strategy with its settings; equal on all ranks."""
        return repr(self)


def add(flats: list[Any], changes: list[Any], alpha: float = 1.0) -> None:
    """flats += alpha · changes, in place."""
    for flat, change in zip(flats, changes, strict=True):
        flat.add_(change, alpha=alpha)


def check_period(owner: str, name: str, value: Any, least: int = 1) -> int:
    """The setting, which must be an int of at least `least`. Raises ValueError."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{owner}: {name} is {value!r}, expected an int of at least {least}")
    return value


def check_flag(owner: str, name: str, value: Any) -> None:
    """Raises ValueError unless the setting is True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{owner}: {name} is {value!r}, expected True or False")


def checked_outer(optimizer: Any) -> torch.optim.Optimizer:
    """What a function has made for an outer optimizer. Raises TypeError for what cannot be one."""
    is_one = isinstance(optimizer, torch.optim.Optimizer)
    if not is_one or isinstance(optimizer, torch.optim.LBFGS):
        expected = "a torch optimizer for the tensors that it got, other than LBFGS"
        raise wrong_type("DiLoCo: what outer returned", optimizer, expected)
    return cast(torch.optim.Optimizer, optimizer)


def check_number(
    owner: str, name: str, value: Any, accepts: Callable[[float], bool], expected: str
) -> None:
    """Raises ValueError unless the setting is a number that `accepts` takes."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not is_number or not accepts(value):
        raise ValueError(f"{owner}: {name} is {value!r}, expected a number {expected}")
