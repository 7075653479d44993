"""Residuals: what codecs keep of each gradient from step to step.

A residual belongs to the name of a parameter, since buckets may change. It is in units of the
gradient. Where the learning rate or a loss scale has changed since, a factor brings it to the
present units, so that what was held back has the effect that it would have had (Karimireddy et
al., arXiv:1901.09847, keep it in units of the update for that).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

# The learning rate of a parameter, and the scale of its loss; None where that is not known.
Units = tuple[float | None, float | None]


@dataclass(eq=False)
class Residual:
    """Of one gradient, for its sender and for the owner of its slice."""

    units: Units = (None, None)
    tensors: dict[str, torch.Tensor] = field(default_factory=dict)  # By role.


class Residuals:
    """Of all gradients of a path, by name. All calls come from the thread that trains."""

    def __init__(self, units_of: Callable[[str], Units]) -> None:
        self._units_of = units_of
        self._by_name: dict[str, Residual] = {}

    def tensors(
        self,
        role: str,
        names: Sequence[str],
        floats: Sequence[int],
        dtype: torch.dtype = torch.float32,
    ) -> list[torch.Tensor]:
        """The state of these gradients, flat on the CPU, zeros at first."""
        found = []
        for name, count in zip(names, floats, strict=True):
            tensors = self._by_name.setdefault(name, Residual()).tensors
            if role not in tensors or tensors[role].numel() != count:
                tensors[role] = torch.zeros(count, dtype=dtype, device="cpu")
            found.append(tensors[role])
        return found

    def factors(self, names: Sequence[str]) -> list[float]:
        """By what the states are multiplied, to be in the units of this step."""
        return [_factor(self._by_name[n].units, self._units_of(n)) for n in names]

    def kept(self, names: Sequence[str]) -> None:
        """The states of these are in the units of this step now."""
        for name in names:
            self._by_name[name].units = self._units_of(name)

    def state_dict(self) -> dict[str, Any]:
        """Copies, by name."""
        return {
            name: {
                "units": list(residual.units),
                "tensors": {role: tensor.clone() for role, tensor in residual.tensors.items()},
            }
            for name, residual in self._by_name.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what state_dict() gave."""
        self._by_name = {
            name: Residual(
                (saved["units"][0], saved["units"][1]),
                {role: tensor.clone() for role, tensor in saved["tensors"].items()},
            )
            for name, saved in state.items()
        }

    def drop(self) -> None:
        """Forgets all."""
        self._by_name = {}


def _factor(then: Units, now: Units) -> float:
    """An effect is residual × learning rate ÷ scale."""
    factor = 1.0
    if then[0] and now[0]:
        factor *= then[0] / now[0]
    if then[1] and now[1]:
        factor *= now[1] / then[1]
    return factor
