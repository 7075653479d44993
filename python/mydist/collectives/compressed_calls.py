"""Calls that reduce what a Compressor makes of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .compression import Compression, CompressorLike, compress_all, decompress_all
from .handles import Finish, remember

_Tensors = list[torch.Tensor]


def start_compressed(
    call: str,
    tensors: _Tensors,
    compression: CompressorLike,
    enqueue: Callable[[_Tensors], int],
    finish: Finish,
) -> int:
    """Enqueues what `compression` makes of the tensors; `finish` gets the decompressed outputs."""
    if compression is Compression.none:
        return remember(enqueue(tensors), finish)
    with torch.no_grad():
        compressed, contexts = compress_all(call, tensors, compression)
        handle = enqueue(compressed)

    def decompress(outputs: _Tensors) -> Any:
        with torch.no_grad():
            return finish(decompress_all(outputs, contexts, compression))

    return remember(handle, decompress)


def record_compressed(
    call: str,
    tensors: _Tensors,
    compression: CompressorLike,
    record: Callable[[_Tensors], _Tensors],
) -> _Tensors:
    """The same for a call that is recorded by autograd, through the compressor as well."""
    compressed, contexts = compress_all(call, tensors, compression)
    return decompress_all(record(compressed), contexts, compression)
