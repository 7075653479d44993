"""`horovod.torch.elastic`: its names. Using one is an error: mydist has no elastic jobs yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .sampler import ElasticSampler
from .state import TorchState
from .unavailable import unavailable

__all__ = ["ElasticSampler", "TorchState", "run"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Raises NotImplementedError."""
    raise unavailable("run")
