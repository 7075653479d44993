"""`horovod.torch.elastic.state`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....elastic import TorchState
from .unavailable import unavailable

__all__ = [
    "ModelStateHandler",
    "OptimizerStateHandler",
    "SamplerStateHandler",
    "StateHandler",
    "TorchState",
    "get_handler_registry",
    "set_handler_registry",
]


class StateHandler:
    """Cannot be made: `TorchState` keeps values by their own state dicts."""

    def __init__(self, value: Any) -> None:
        """Raises NotImplementedError."""
        raise unavailable(type(self).__name__)


class ModelStateHandler(StateHandler):
    """Of a model."""


class OptimizerStateHandler(StateHandler):
    """Of an optimizer."""


class SamplerStateHandler(StateHandler):
    """Of a sampler."""


def get_handler_registry() -> Sequence[tuple[type, type]]:
    """Raises NotImplementedError."""
    raise unavailable("get_handler_registry")


def set_handler_registry(registry: Sequence[tuple[type, type]]) -> None:
    """Raises NotImplementedError."""
    raise unavailable("set_handler_registry")
