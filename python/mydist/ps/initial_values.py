"""What a row of a RowTable holds before it is pushed to for the first time."""

from __future__ import annotations

from dataclasses import dataclass

from ..job.error_text import wrong_type

__all__ = ["Initial", "Normal", "Uniform", "Zeros"]


@dataclass(frozen=True)
class Initial:
    """The base of Zeros, Uniform and Normal."""

    scale: float = 0.0

    @property
    def kind(self) -> str:
        """The name of the distribution."""
        return type(self).__name__.lower()

    def __post_init__(self) -> None:
        """Raises ValueError for a scale below 0, TypeError for one that is no number."""
        name = type(self).__name__
        if isinstance(self.scale, bool) or not isinstance(self.scale, (int, float)):
            raise wrong_type(f"{name}: scale", self.scale, "a number of at least 0")
        if not self.scale >= 0:
            raise ValueError(f"{name}: scale is {self.scale!r}, expected a number of at least 0")


@dataclass(frozen=True)
class Zeros(Initial):
    """All zeros."""


@dataclass(frozen=True)
class Uniform(Initial):
    """Even between -scale and scale."""

    scale: float = 0.01


@dataclass(frozen=True)
class Normal(Initial):
    """Around 0, with the standard deviation `scale`."""

    scale: float = 0.01
