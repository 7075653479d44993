"""onebit: signs, and one float32 for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .codec import Codec

__all__ = ["OneBit"]


@dataclass(frozen=True)
class OneBit(Codec):
    """Signs times their mean magnitude, with a residual (Karimireddy et al., arXiv:1901.09847).

    Each slice of a tensor travels as the sign of each value and the mean magnitude of all. What a
    step does not send is added to the next gradient, both where a slice is sent and where it is
    summed; without that the mean of the steps would be wrong. A slice with an infinite value or NaN
    arrives as NaN. n values take n ÷ 8 bytes and 4 per slice. The residuals take 4n bytes and 4 per
    value of this rank's slice.

    Args:
        force: encode also between ranks of one host.
    """

    name: ClassVar[str] = "onebit"
    force: bool = False
