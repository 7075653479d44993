"""SynchronousGradients: the default; every step averages the gradients of all ranks."""

from __future__ import annotations

from dataclasses import dataclass

from .strategy import Strategy

__all__ = ["SynchronousGradients"]


@dataclass(eq=False)
class SynchronousGradients(Strategy):
    """Every step averages gradients over all ranks while backward runs. The default."""

    def before_step(self, step: int) -> bool:
        """No step is local."""
        return False

    def after_step(self, step: int) -> None:
        """Never called: no step is local."""
