"""qsgd: buckets of values as random whole numbers of a few bits and one float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .codec import Codec

__all__ = ["Qsgd"]


@dataclass(frozen=True)
class Qsgd(Codec):
    """Buckets of values, rounded at random to levels of their norm (Alistarh, arXiv:1610.02132).

    A value is rounded up or down to a multiple of norm ÷ levels of its bucket, so that the mean
    over all draws is the value. With s levels and n values of norm v the variance is at most
    min(n ÷ s², √n ÷ s) × v². A bucket with an infinite value or NaN arrives as NaN. A value takes
    as many bits as 2 × levels + 1 numbers need: 2 for 1 level, 4 for 7, 6 for 16, 8 for 127. A
    bucket has 4 bytes more.

    Args:
        levels: between 0 and the norm, 1 to 127.
        bucket: values that share a norm, 16 to 65536.
        seed: of the draws. The generators of torch and Python are not used.
        force: encode also between ranks of one host.

    Raises:
        ValueError: `levels`, `bucket` or `seed` is out of range.
    """

    name: ClassVar[str] = "qsgd"
    levels: int = 16
    bucket: int = 512
    seed: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        self._check_count("levels", 1, 127)
        self._check_count("bucket", 16, 65536)
        self._check_seed()
