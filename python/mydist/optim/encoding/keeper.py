"""Keeper: what has a state of codecs that differs between ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Keeper(Protocol):
    """A path of gradients, or the sums of a strategy."""

    def state_dict(self) -> dict[str, Any]:
        """What this rank keeps: the steps that counted, and the residuals."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what state_dict() of the same rank gave."""

    def drop_state(self) -> bool:
        """Forgets what this rank keeps. Returns whether its codecs keep anything."""
