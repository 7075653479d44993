"""fp8: blocks of values as floating-point numbers of 8 bits and one float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .. import _C
from .codec import Codec, CodecCore

__all__ = ["Fp8"]

# Bits of the fraction.
_FRACTIONS = {"e4m3": 3, "e5m2": 2}


@dataclass(frozen=True)
class Fp8(Codec):
    """Blocks of values as 8-bit floats times one float32 (Micikevicius et al., arXiv:2209.05433).

    A block's largest magnitude becomes the largest number of the format. Others are rounded to the
    nearest: e4m3 is off by at most 1/16 of a value, e5m2 by 1/8. Values below 1/28672 of the
    largest (e5m2: 1 in 940 million) have fewer digits. int8 is nearer to large values of a block,
    fp8 to small ones. n values take n + 4n ÷ block bytes.

    Args:
        format: "e4m3" or "e5m2", by the bits of exponent and fraction.
        block: values that share a scale, 16 to 65536.
        force: encode also between ranks of one host.

    Raises:
        ValueError: there is no such format, or `block` is out of range.
    """

    name: ClassVar[str] = "fp8"
    format: str = "e4m3"
    block: int = 256
    force: bool = False

    def __post_init__(self) -> None:
        if self.format not in list(_FRACTIONS):
            raise self._refuse("format", "'e4m3' or 'e5m2'")
        self._check_count("block", 16, 65536)

    def core(self) -> CodecCore:
        """See Codec."""
        options = {"fraction": float(_FRACTIONS[self.format]), "block": float(self.block)}
        return _C.GradientCodec(self.name, options)
