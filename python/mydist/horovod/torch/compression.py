"""The compressors of `horovod.torch.compression`."""

from __future__ import annotations

from typing import Any

import torch

from ...collectives.compression import Compressor, NoneCompressor

__all__ = ["Compression", "Compressor", "FP16Compressor", "NoneCompressor"]


class FP16Compressor(Compressor):
    """Floating-point tensors travel as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Returns the tensor in float16, and its dtype."""
        wire = tensor.to(torch.float16) if tensor.dtype.is_floating_point else tensor
        return wire, tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Returns the tensor in the dtype `ctx`."""
        return tensor.to(ctx) if ctx.is_floating_point else tensor


class Compression:
    """The compressors there are."""

    none = NoneCompressor
    fp16 = FP16Compressor
