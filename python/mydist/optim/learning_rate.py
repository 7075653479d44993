"""Learning rates for many ranks: the scaling rules, and a warm-up that any scheduler goes with."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal, overload

import torch

from ..job import topology
from ..job.error_text import check_state, check_whole, wrong_type

__all__ = ["WarmupLR", "scale_lr"]

Rule = Literal["linear", "sqrt"]
_MARK = "_mydist_warmup"


@overload
def scale_lr(target: float, size: int | None = None, rule: Rule = "linear") -> float: ...
@overload
def scale_lr(
    target: torch.optim.Optimizer, size: int | None = None, rule: Rule = "linear"
) -> torch.optim.Optimizer: ...


def scale_lr(
    target: float | torch.optim.Optimizer, size: int | None = None, rule: Rule = "linear"
) -> float | torch.optim.Optimizer:
    """Scales a learning rate that suits one rank to the batch of all ranks.

    "linear" multiplies by `size`: for SGD, Goyal et al. 2017, arXiv:1706.02677. "sqrt" multiplies
    by √size, which keeps the variance of the update: Krizhevsky 2014, arXiv:1404.5997; for Adam and
    RMSProp, Malladi et al. 2022, arXiv:2205.10287.

    Args:
        target: a rate, or an optimizer, wrapped or not, whose groups' rates are changed in place.
        size: by how much the batch has grown. None: size(); with accumulation pass
            `mydist.size() * backward_passes_per_step`.
        rule: "linear" or "sqrt".

    Returns:
        The scaled rate, or the same optimizer.

    Raises:
        ValueError: `size` is below 1, the rule is unknown, the optimizer has a scheduler already,
            which would put the old rate back, or before mydist.init().
        TypeError: `target` is neither, or `size` is no int.
    """
    factor = _factor(size, rule)
    if isinstance(target, torch.optim.Optimizer):
        if any("initial_lr" in group for group in target.param_groups):
            raise ValueError(
                "scale_lr: the optimizer has a scheduler, which has stored the unscaled rate; "
                "call scale_lr() before you make the scheduler"
            )
        for group in target.param_groups:
            group["lr"] *= factor  # In place if it is a tensor.
        return target
    if isinstance(target, bool) or not isinstance(target, (int, float)):
        raise TypeError(
            f"scale_lr: got {target!r} ({type(target).__qualname__}), expected a learning rate or "
            "a torch.optim.Optimizer"
        )
    return target * factor


def _factor(size: Any, rule: Any) -> float:
    if size is None:
        size = topology.size()
    if check_whole("scale_lr: size", size, "an int or None") < 1:
        raise ValueError(f"scale_lr: size is {size}, expected at least 1")
    if rule not in ("linear", "sqrt"):
        raise ValueError(f"scale_lr: rule is {rule!r}, expected 'linear' or 'sqrt'")
    return float(size) if rule == "linear" else math.sqrt(size)


class WarmupLR:
    """Lets the first steps of an optimizer use less than the learning rate that is set.

    Step t, from 0, uses `lr · (start_factor + (1 - start_factor) · t / steps)` while t < steps, and
    lr itself from then on: the gradual warm-up of Goyal et al. 2017, arXiv:1706.02677, section 2.2.

    The groups' "lr" is lowered while `optimizer.step()` runs and put back after it. Whatever sets
    it, each step or each epoch, ReduceLROnPlateau and chained schedulers included, therefore sees
    and saves the full rate, and is used and stepped as if there were no warm-up. There is no step()
    to call: the steps of the optimizer are counted, not those that GradScaler skips.

    pickle and copy.deepcopy() take the optimizer along, as those of torch's schedulers do; a
    DistributedOptimizer refuses. state_dict() has the numbers alone.

    Args:
        optimizer: any torch optimizer; the warm-up holds for it and its DistributedOptimizer, and
            may be made before or after wrapping, before or after schedulers.
        steps: length of the warm-up in steps of the optimizer, e.g. `5 * len(loader)` for 5
            epochs; 0: none.
        start_factor: from 0 to 1. None: 1 / size(), from the rate of one rank to the scaled one.

    Raises:
        TypeError: `optimizer` is no optimizer, `steps` no int or `start_factor` no number.
        ValueError: a number is out of range, the optimizer has a warm-up, or start_factor is None
            before mydist.init().
    """

    def __init__(
        self, optimizer: torch.optim.Optimizer, steps: int, start_factor: float | None = None
    ) -> None:
        _check_optimizer(optimizer)
        self.steps = _check_steps(steps)
        self.start_factor = _check_start(start_factor)
        self.steps_taken = 0
        # Weakly: the optimizer owns this object, and must end with its last user.
        self._optimizer = _reference(optimizer)
        # The full rates while a step runs; empty in between.
        self._full: list[float | torch.Tensor] = []
        self._last: list[float] = []
        self._attach(optimizer)

    def __getstate__(self) -> dict[str, Any]:
        """For pickle: the optimizer itself in place of the weak reference to it."""
        return {**self.__dict__, "_optimizer": self._optimizer()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Goes with the optimizer of the same pickle, which has lost its hooks there."""
        optimizer = state["_optimizer"]
        if optimizer is not None:
            _check_optimizer(optimizer)
        self.__dict__.update(state, _optimizer=_reference(optimizer))
        if optimizer is not None:
            self._attach(optimizer)

    def _attach(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.__dict__[_MARK] = self  # The wrapped optimizer has the same __dict__.
        optimizer.register_step_pre_hook(self._lower)
        optimizer.register_step_post_hook(self._restore)

    @property
    def factor(self) -> float:
        """What the next step's rate is multiplied with."""
        if self.steps_taken >= self.steps:
            return 1.0
        return self.start_factor + (1.0 - self.start_factor) * self.steps_taken / self.steps

    def get_last_lr(self) -> list[float]:
        """The rates the last step used, by parameter group; before the first, those it will use.

        ValueError when the optimizer no longer exists and has taken no step.
        """
        if self._last:
            return list(self._last)
        optimizer = self._optimizer()
        if optimizer is None:
            raise ValueError(
                "WarmupLR.get_last_lr: the optimizer was deleted before its first step, so "
                "there is no rate"
            )
        return [float(group["lr"]) * self.factor for group in optimizer.param_groups]

    def state_dict(self) -> dict[str, int | float]:
        """The settings and the number of steps taken, to be saved with the optimizer's state."""
        return {
            "steps": self.steps,
            "start_factor": self.start_factor,
            "steps_taken": self.steps_taken,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where `state` was taken. Raises ValueError if it is not of a WarmupLR."""
        check_state("WarmupLR", state, self.state_dict())
        self.steps = _check_steps(state["steps"])
        self.start_factor = _check_start(state["start_factor"])
        self.steps_taken = state["steps_taken"]
        self._last = []

    def _lower(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._full:  # The last step raised before the rates were put back.
            self._put_back(optimizer)
        factor = self.factor
        groups = optimizer.param_groups
        if factor < 1.0:
            for group in groups:
                rate = group["lr"]
                # A tensor is changed in place: fused and captured kernels hold on to it.
                is_tensor = isinstance(rate, torch.Tensor)
                self._full.append(rate.clone() if is_tensor else rate)
                group["lr"] = rate.mul_(factor) if is_tensor else rate * factor
        self._last = [float(group["lr"]) for group in groups]

    def _restore(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        self._put_back(optimizer)
        self.steps_taken += 1

    def _put_back(self, optimizer: torch.optim.Optimizer) -> None:
        # Not strict: groups may have been added since a step that raised.
        for group, rate in zip(optimizer.param_groups, self._full, strict=False):
            is_tensor = isinstance(rate, torch.Tensor)
            group["lr"] = group["lr"].copy_(rate) if is_tensor else rate
        self._full = []


def pass_on_warmup(wrapped: torch.optim.Optimizer) -> None:
    """The warm-up that an optimizer had before it was wrapped, if any, looks at the new object."""
    warmup: WarmupLR | None = wrapped.__dict__.get(_MARK)
    if warmup is not None:
        warmup._optimizer = weakref.ref(wrapped)


def _reference(
    optimizer: torch.optim.Optimizer | None,
) -> Callable[[], torch.optim.Optimizer | None]:
    """A weak reference; to nothing where the optimizer is gone."""
    return weakref.ref(optimizer) if optimizer is not None else lambda: None


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"WarmupLR: got {type(optimizer).__qualname__}, expected a "
            "torch.optim.Optimizer; WarmupLR works with any scheduler of that optimizer"
        )
    if _MARK in optimizer.__dict__:
        raise ValueError(
            "WarmupLR: the optimizer has a warm-up already, expected one per optimizer"
        )


def _check_steps(steps: Any) -> int:
    if check_whole("WarmupLR: steps", steps, "an int; round epochs * len(loader)") < 0:
        raise ValueError(f"WarmupLR: steps is {steps}, expected at least 0")
    return int(steps)


def _check_start(start_factor: Any) -> float:
    if start_factor is None:
        return 1.0 / topology.size()
    if isinstance(start_factor, bool) or not isinstance(start_factor, (int, float)):
        raise wrong_type("WarmupLR: start_factor", start_factor, "a number or None")
    if not 0.0 <= start_factor <= 1.0:
        raise ValueError(f"WarmupLR: start_factor is {start_factor}, expected a number from 0 to 1")
    return float(start_factor)
