"""natural: powers of two, at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .codec import Codec

__all__ = ["Natural"]


@dataclass(frozen=True)
class Natural(Codec):
    """Each value as a power of two next to it, drawn at random (Horváth et al., arXiv:1905.10988).

    The power above or below is drawn so that the mean over all draws is the value; the variance is
    at most 1/8 of its square. A byte has the sign and 7 bits of the exponent, counted from one that
    512 values share. What is below 2⁻¹²⁵ of their largest becomes 0. 512 values with an infinite
    one or NaN arrive as NaN. n values take n + n ÷ 512 bytes.

    Args:
        seed: of the draws. The generators of torch and Python are not used.
        force: encode also between ranks of one host.

    Raises:
        ValueError: `seed` is out of range.
    """

    name: ClassVar[str] = "natural"
    seed: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        self._check_seed()
