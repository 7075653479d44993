"""int8: blocks of values as 8-bit integers and one float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .codec import Codec

__all__ = ["Int8"]


@dataclass(frozen=True)
class Int8(Codec):
    """Blocks of values as 8-bit integers times one float32 (Dettmers, arXiv:1511.04561).

    A value is rounded to the nearest of 255 steps between minus and plus the largest magnitude of
    its block. n values take n + 4n ÷ block bytes, a quarter of float32.

    Args:
        block: values that share a scale, 16 to 65536.
        force: encode also between ranks of one host.

    Raises:
        ValueError: `block` is out of range.
    """

    name: ClassVar[str] = "int8"
    block: int = 256
    force: bool = False

    def __post_init__(self) -> None:
        self._check_count("block", 16, 65536)
