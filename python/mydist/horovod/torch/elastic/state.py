"""`horovod.torch.elastic.state`."""

from __future__ import annotations

from typing import Any

from .unavailable import unavailable

__all__ = ["TorchState"]


class TorchState:
    """Cannot be made: mydist has no elastic jobs yet."""

    def __init__(self, model: Any = None, optimizer: Any = None, **kwargs: Any) -> None:
        """Raises NotImplementedError."""
        raise unavailable("TorchState")
