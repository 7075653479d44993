"""A fast hash of tensor values, the same on every device and in every process.

The bytes of a tensor are read as 32-bit words x_i; the hash is the sum of w_i * x_i modulo 2^64
with fixed pseudo-random 64-bit weights (multilinear hashing: Carter and Wegman 1979, Dietzfelbinger
1996). Rows of 65,536 words share the weights; the sums of the rows are hashed in the same way.

For two given tensors that differ, at most 2^-33 of all choices of the weights give one level the
same sum: a difference of words is below 2^32, so 2^31 is the largest power of two in it. A tensor
of up to 8 GiB has at most two levels, so differing values stay unseen with probability 2^-32.
"""

from __future__ import annotations

import functools

import torch

_ROW_WORDS = 1 << 16
_WORD_BYTES = 4


def value_hash(tensor: torch.Tensor) -> torch.Tensor:
    """The hash of the bytes of a dense tensor of any shape and dtype: 0-d, int64, on its device.

    Bitwise: NaNs of the same bits are equal, 0.0 and -0.0 differ. One pass, 0.5 MiB of scratch.
    """
    words = _words(tensor.detach())
    if not words.numel():
        return torch.zeros((), dtype=torch.int64, device=tensor.device)
    weights = _weights(tensor.device)
    sums = torch.stack(
        [(row * weights[: row.numel()]).sum() for row in torch.split(words, _ROW_WORDS)]
    )
    return sums[0] if sums.numel() == 1 else value_hash(sums)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes as int32, shape (bytes / 4,), filled up with zeros; a copy only if it must be."""
    flat = tensor.resolve_conj().resolve_neg().contiguous().view(-1).view(torch.uint8)
    if flat.numel() % _WORD_BYTES or flat.storage_offset() % _WORD_BYTES:
        flat = torch.nn.functional.pad(flat, (0, -flat.numel() % _WORD_BYTES)).clone()
    return flat.view(torch.int32)


@functools.cache
def _weights(device: torch.device) -> torch.Tensor:
    """SplitMix64 (Steele, Lea and Flood, OOPSLA 2014) of 1 … 65,536, shape (65536,), int64."""
    with torch.inference_mode(False):  # Kept for calls outside of it.
        state = torch.arange(1, _ROW_WORDS + 1, dtype=torch.int64, device="cpu")
        state = state * _signed(0x9E3779B97F4A7C15)
        state = (state ^ _shifted(state, 30)) * _signed(0xBF58476D1CE4E5B9)
        state = (state ^ _shifted(state, 27)) * _signed(0x94D049BB133111EB)
        return (state ^ _shifted(state, 31)).to(device)


def _shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Shifts right, filling with zeros as for unsigned numbers."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _signed(value: int) -> int:
    """The int64 of the same 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value
