"""threshold: the values of at least a magnitude, with their indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .codec import Codec

__all__ = ["Threshold"]

_MOST = 3.4e38  # Of float32.


@dataclass(frozen=True)
class Threshold(Codec):
    """The values of at least a magnitude (Strom, Interspeech 2015).

    Each takes 8 bytes with its index, at most 4 × n bytes for n values, and none may be sent. What
    was not sent is added to the next gradient. Payloads vary in size, so the ranks negotiate in
    each step.

    Args:
        value: the least magnitude that travels, in units of the gradient, above 0.
        force: encode also between ranks of one host.

    Raises:
        ValueError: `value` is out of range.
    """

    name: ClassVar[str] = "threshold"
    way: ClassVar[str] = "gathers"
    value: float
    force: bool = False

    def __post_init__(self) -> None:
        self._check_number("value", 0, _MOST)
