"""OneBitAdam: Adam whose momentum travels as signs, once its variances are known."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

__all__ = ["OneBitAdam"]


class OneBitAdam(torch.optim.Optimizer):
    """1-bit Adam (Tang et al., arXiv:2102.02888): give it to `DistributedOptimizer`.

    The first `freeze_step` steps are those of Adam, with gradients that travel as they are. Then
    the second moment v stays as it is. Each rank adds its own gradient to the momentum m, and what
    travels of m between hosts are signs, with error feedback: 1 bit a value. A parameter element
    whose v is 0 by then, as of a row that was never used, changes no more.

    The paper takes 15 to 20 % of all steps as `freeze_step`, after the warm-up of the learning
    rate.

    Args:
        params: as of every torch optimizer.
        lr: learning rate, at least 0.
        freeze_step: steps before v is frozen, at least 1.
        betas: for m and v, each at least 0 and below 1.
        eps: added to the root of v, at least 0.
        weight_decay: times the parameter, added to the step as AdamW does, at least 0.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        freeze_step: int = 1000,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if isinstance(freeze_step, bool) or not isinstance(freeze_step, int) or freeze_step < 1:
            raise ValueError(
                f"OneBitAdam: freeze_step is {freeze_step!r}, expected an integer of at least 1"
            )
        for name, value in (("lr", lr), ("eps", eps), ("weight_decay", weight_decay)):
            if not value >= 0:
                raise ValueError(f"OneBitAdam: {name} is {value!r}, expected at least 0")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"OneBitAdam: betas is {betas!r}, expected two of at least 0, below 1")
        self.freeze_step = freeze_step
        self._group_of: dict[int, int] = {}  # By id() of the parameter, the number of its group.
        self._momenta: set[int] = set()  # id() of parameters whose `.grad` is the new momentum.
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    def is_frozen(self, parameter: torch.Tensor) -> bool:
        """Whether v of the parameter stays as it is in the next step."""
        return self._steps_of(parameter) >= self.freeze_step

    def local_momentum(
        self, parameter: torch.Tensor, gradient: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """m with this rank's gradient in it: what the ranks average in place of gradients.

        Args:
            gradient: of the parameter's shape, of any type and device; the result has those, too.
            scale: of the loss, and so of the gradient; the result has it, too.
        """
        beta = self._beta_of(parameter)
        mean: torch.Tensor = self.state[parameter]["exp_avg"]
        return mean.to(gradient).mul(beta * scale).add_(gradient, alpha=1 - beta)

    def take_momentum(self, parameter: torch.Tensor) -> None:
        """Says that `.grad` of the parameter is the averaged momentum in the next step."""
        self._momenta.add(id(parameter))

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One step; see the class.

        Args:
            closure: recomputes the loss, as torch optimizers take it.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update(parameter, parameter.grad, group)
        self._momenta.clear()
        return loss

    def _update(
        self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]
    ) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.tensor(0.0)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        first, second = group["betas"]
        was_frozen = self.is_frozen(parameter)
        state["step"] += 1
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        if id(parameter) in self._momenta:
            mean.copy_(gradient)
        else:
            mean.mul_(first).add_(gradient, alpha=1 - first)
        if not was_frozen:
            square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        steps = int(state["step"])
        known = min(steps, self.freeze_step)
        root = square.sqrt().div_(math.sqrt(1 - second**known))
        update = mean / root.add_(group["eps"])
        if was_frozen:
            update.masked_fill_(square == 0, 0.0)
        if group["weight_decay"]:
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(update, alpha=-group["lr"] / (1 - first**steps))

    def _steps_of(self, parameter: torch.Tensor) -> int:
        state = self.state.get(parameter)
        return int(state["step"]) if state else 0

    def _beta_of(self, parameter: torch.Tensor) -> float:
        if id(parameter) not in self._group_of:
            groups = enumerate(self.param_groups)
            self._group_of = {id(p): number for number, g in groups for p in g["params"]}
        beta: float = self.param_groups[self._group_of[id(parameter)]]["betas"][0]
        return beta
