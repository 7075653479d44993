"""StepUnits: in which units a gradient is: its learning rate, and the scale of its loss."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..onebit_adam import OneBitAdam
from .residuals import Units


class StepUnits:
    """Of the parameters of one optimizer, as they are at the time of the call."""

    def __init__(self) -> None:
        self._optimizer: weakref.ref[torch.optim.Optimizer] | None = None
        self._scaler: weakref.ref[torch.amp.GradScaler] | None = None
        self._groups: dict[int, int] = {}  # By id() of the parameter, the number of its group.

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Before the first call."""
        self._optimizer = weakref.ref(optimizer)

    def note_scaler(self, scaler: Any) -> None:
        """Called by what a GradScaler asks of the optimizer. Anything else is ignored."""
        if isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled():
            self._scaler = weakref.ref(scaler)

    def momentum_of(self) -> OneBitAdam | None:
        """The optimizer, if its momentum travels in place of gradients."""
        optimizer = None if self._optimizer is None else self._optimizer()
        return optimizer if isinstance(optimizer, OneBitAdam) else None

    def __call__(self, parameter: torch.Tensor) -> Units:
        """Of a parameter of the optimizer; None for what is not known."""
        optimizer = None if self._optimizer is None else self._optimizer()
        if optimizer is None:
            return None, None
        groups = optimizer.param_groups
        if id(parameter) not in self._groups:
            self._groups = {id(p): i for i, group in enumerate(groups) for p in group["params"]}
        number = self._groups.get(id(parameter))
        rate = None if number is None else groups[number].get("lr")
        scaler = None if self._scaler is None else self._scaler()
        scale = None if scaler is None else scaler.get_scale()
        return None if rate is None else float(rate), scale
