"""Calls that reduce what a Compressor makes of their tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..job.names import Submitting
from .compression import Compression, CompressorLike, compress_all, decompress_all
from .handles import Finish, remember

_Tensors = list[torch.Tensor]


def start_compressed(
    call: tuple[str, str],
    tensors: _Tensors,
    compression: CompressorLike,
    enqueue: Callable[[_Tensors], int],
    finish: Finish,
) -> int:
    """Enqueues what `compression` makes of the tensors; `finish` gets the decompressed outputs.

    `call` is what messages call it, and its name, whose number no rank has used if this raises.
    """
    if compression is Compression.none:
        return remember(enqueue(tensors), finish)
    with torch.no_grad():
        compressed, contexts = _compress(call, tensors, compression)
        handle = enqueue(compressed)

    def decompress(outputs: _Tensors) -> Any:
        with torch.no_grad():
            return finish(decompress_all(outputs, contexts, compression))

    return remember(handle, decompress)


def record_compressed(
    call: tuple[str, str],
    tensors: _Tensors,
    compression: CompressorLike,
    record: Callable[[_Tensors], _Tensors],
) -> _Tensors:
    """The same for a call that is recorded by autograd, through the compressor as well."""
    compressed, contexts = _compress(call, tensors, compression)
    return decompress_all(record(compressed), contexts, compression)


def _compress(
    call: tuple[str, str], tensors: _Tensors, compression: CompressorLike
) -> tuple[_Tensors, list[Any]]:
    """A user's compressor, which may raise anything, runs before the ranks hear of the call."""
    function, name = call
    with Submitting(name):
        return compress_all(function, tensors, compression)
