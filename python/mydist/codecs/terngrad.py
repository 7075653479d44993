"""terngrad: −1, 0 or 1 at random, and one float32 for all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .codec import Codec

__all__ = ["TernGrad"]


@dataclass(frozen=True)
class TernGrad(Codec):
    """−1, 0 or 1 times the largest magnitude, drawn at random (Wen et al., arXiv:1705.07878).

    Each slice of a tensor has a scale: its largest magnitude, after values above 2.5 times the root
    of the mean square are cut off there. A value is as often not 0 as it is a share of the scale,
    so the mean over all draws is the value, but for what is cut off. The paper cuts off at 2.5
    standard deviations, which would erase a slice of equal values. A slice with an infinite value
    or NaN arrives as NaN. n values take n ÷ 4 bytes and 4 per slice.

    Args:
        seed: of the draws. The generators of torch and Python are not used.
        force: encode also between ranks of one host.

    Raises:
        ValueError: `seed` is out of range.
    """

    name: ClassVar[str] = "terngrad"
    seed: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        self._check_seed()
