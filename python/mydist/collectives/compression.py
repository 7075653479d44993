"""Compression: makes tensors smaller on the wire, at the price of precision.

A compressor turns a tensor into one that can be reduced element by element and back. The two
built-in ones halve float32 traffic: `fp16` keeps 10 bits of mantissa and overflows above 65504,
`bf16` keeps 7 bits and the whole range of float32. Sums are accumulated in float32 either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch

from ..codecs.auto import Auto
from ..codecs.codec import Codec
from ..codecs.dgc import Dgc
from ..codecs.fp8 import Fp8
from ..codecs.int8 import Int8
from ..codecs.natural import Natural
from ..codecs.onebit import OneBit
from ..codecs.powersgd import PowerSGD
from ..codecs.qsgd import Qsgd
from ..codecs.randomk import RandomK
from ..codecs.signsgd import SignSgd
from ..codecs.terngrad import TernGrad
from ..codecs.threshold import Threshold
from ..codecs.topk import TopK
from .arguments import check_tensor

__all__ = ["Compression", "Compressor"]


class Compressor:
    """Interface of a compressor; subclass it and override both methods.

    The compressed tensors of all ranks must have equal shapes and dtypes, and reducing them must
    mean the same as reducing the originals; sparsifying schemes do not fit.
    """

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns what travels and a context for `decompress`.

        Args:
            tensor: any shape and dtype; must not be modified.
        """
        raise NotImplementedError("a Compressor must implement compress(tensor)")

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the reduced `tensor` in the shape and dtype that was given to `compress`.

        Args:
            tensor: the reduced tensor, shaped as `compress` returned it.
            ctx: the context that `compress` returned.
        """
        raise NotImplementedError("a Compressor must implement decompress(tensor, ctx)")


class NoneCompressor(Compressor):
    """Sends tensors as they are."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor itself."""
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the tensor itself."""
        return tensor


class CastCompressor(Compressor):
    """Casts wider floating-point tensors to `wire_dtype`; everything else passes through."""

    wire_dtype: ClassVar[torch.dtype]

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor in `wire_dtype`; the context is the dtype to return to."""
        if tensor.is_floating_point() and tensor.element_size() > cls.wire_dtype.itemsize:
            return tensor.to(cls.wire_dtype), tensor.dtype
        return tensor, None

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the tensor in the dtype it had before `compress`."""
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(CastCompressor):
    """float32 and float64 travel as float16."""

    wire_dtype = torch.float16


class BF16Compressor(CastCompressor):
    """float32 and float64 travel as bfloat16."""

    wire_dtype = torch.bfloat16


class Compression:
    """The built-in compressors `none`, `fp16` and `bf16`, and codecs such as `int8(block=256)`.

    Compressors cast, so that any collective can take them. Codecs encode the gradients of an
    optimizer, or what its strategy sends; see docs/compression.md.
    """

    none = NoneCompressor
    fp16 = FP16Compressor
    bf16 = BF16Compressor
    int8 = Int8
    topk = TopK
    randomk = RandomK
    threshold = Threshold
    dgc = Dgc
    powersgd = PowerSGD
    fp8 = Fp8
    onebit = OneBit
    signsgd = SignSgd
    qsgd = Qsgd
    terngrad = TernGrad
    natural = Natural
    auto = Auto


# What collectives take as `compression`, and what optimizers take.
CompressorLike = type[Compressor] | Compressor
CompressionLike = CompressorLike | Codec | Mapping[str, CompressorLike | Codec]

# kMostCastElements of csrc/torch/reduction_check.h: the buffer into which the core casts stays.
_MOST_CAST_ELEMENTS = 1 << 24


def core_number(compression: CompressorLike) -> int | None:
    """What the core calls a compressor that it has itself, else None."""
    known = (Compression.none, Compression.fp16, Compression.bf16)
    return next((n for n, own in enumerate(known) if compression is own), None)


def split_compression(
    tensors: list[torch.Tensor], compression: CompressorLike
) -> tuple[CompressorLike, int]:
    """What is left to Python, and what the core casts while it packs: the number it calls that."""
    number = core_number(compression)
    if number is None or any(_is_for_torch(tensor) for tensor in tensors):
        return compression, 0
    return Compression.none, number


def _is_for_torch(tensor: torch.Tensor) -> bool:
    return tensor.dtype == torch.float64 or tensor.numel() > _MOST_CAST_ELEMENTS


def compress_all(
    call: str, tensors: list[torch.Tensor], compression: CompressorLike
) -> tuple[list[torch.Tensor], list[Any]]:
    """What travels instead of the tensors, and the contexts for `decompress_all`."""
    pairs = [_compress_one(call, tensor, compression) for tensor in tensors]
    return [tensor for tensor, _ in pairs], [context for _, context in pairs]


def _compress_one(
    call: str, tensor: torch.Tensor, compression: CompressorLike
) -> tuple[torch.Tensor, Any]:
    compress = getattr(compression, "compress", None)
    if not callable(compress) or not callable(getattr(compression, "decompress", None)):
        raise TypeError(
            f"{call}: compression is {compression!r}, expected a Compressor such as "
            "mydist.Compression.fp16"
        )
    compressed, context = compress(tensor)
    return check_tensor(f"{call}: compression.compress", compressed), context


def decompress_all(
    outputs: list[torch.Tensor], contexts: list[Any], compression: CompressorLike
) -> list[torch.Tensor]:
    """The reduced tensors as they would have come without compression."""
    return [compression.decompress(t, c) for t, c in zip(outputs, contexts, strict=True)]
