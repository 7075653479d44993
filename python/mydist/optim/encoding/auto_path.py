"""AutoPath: stands for a gradient path until the first step has chosen it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from .keeper import Keeper

_NOTHING: dict[str, Any] = {"step": 0, "residuals": {}}


class AutoPath:
    """The first synchronize() makes the path, and reduces all gradients there; so no gradient of
    the first step is reduced in backward. Afterwards hooks of parameters are those of the path."""

    def __init__(self, make: Callable[[], Any], keeps_state: bool) -> None:
        """`make` is collective and is called once; what it gives has the methods of a path."""
        self._make: Callable[[], Any] | None = make
        self._path: Any = None
        self._keeps_state = keeps_state
        self._parameters: list[tuple[torch.Tensor, str, str, int]] = []
        self._is_enabled = True
        self._passes: int | None = None
        self._state: Mapping[str, Any] | None = None

    def add_parameter(
        self, parameter: torch.Tensor, name: str, group: str, group_size: int
    ) -> None:
        if self._path is None:
            self._parameters.append((parameter, name, group, group_size))
        else:
            self._path.add_parameter(parameter, name, group, group_size)

    def synchronize(self) -> None:
        if self._path is None:
            self._choose()
        self._path.synchronize()

    def _choose(self) -> None:
        assert self._make is not None
        self._path, self._make = self._make(), None  # It holds the parameters.
        for arguments in self._parameters:
            self._path.add_parameter(*arguments)
        self._parameters.clear()
        self._path.set_enabled(self._is_enabled)
        if self._passes is not None:
            self._path.set_backward_passes_per_step(self._passes)
        keeper = self._keeper
        if self._state is not None and keeper is not None:
            keeper.load_state_dict(self._state)
        self._state = None

    @property
    def _keeper(self) -> Keeper | None:
        """The path, if it keeps what codecs have not sent."""
        return self._path if hasattr(self._path, "drop_state") else None

    def pending(self) -> list[str]:
        return [] if self._path is None else list(self._path.pending())

    def touched(self) -> bool:
        return self._path is not None and bool(self._path.touched())

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._passes = passes
        if self._path is not None:
            self._path.set_backward_passes_per_step(passes)

    def set_enabled(self, enabled: bool) -> None:
        self._is_enabled = enabled
        if self._path is not None:
            self._path.set_enabled(enabled)

    def reset(self) -> None:
        if self._path is not None:
            self._path.reset()

    def let_go(self) -> None:
        if self._path is not None:
            self._path.let_go()

    def remove(self) -> None:
        self._parameters.clear()
        if self._path is not None:
            self._path.remove()

    def state_dict(self) -> dict[str, Any]:
        """See Keeper."""
        keeper = self._keeper
        return dict(self._state or _NOTHING) if keeper is None else keeper.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Keeper."""
        if self._path is None:
            self._state = state
        elif self._keeper is not None:
            self._keeper.load_state_dict(state)

    def drop_state(self) -> bool:
        """See Keeper."""
        self._state = None
        if self._keeper is not None:
            self._keeper.drop_state()
        return self._keeps_state
