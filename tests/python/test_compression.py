"""Compressors: what travels and what comes back."""

from __future__ import annotations

import pytest
import torch

from mydist.compression import Compression, Compressor


@pytest.mark.parametrize(
    ("kind", "wire"), [("fp16", torch.float16), ("bf16", torch.bfloat16)], ids=["fp16", "bf16"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_floats_travel_narrow_and_come_back(
    kind: str, wire: torch.dtype, dtype: torch.dtype
) -> None:
    compressor = getattr(Compression, kind)
    original = torch.tensor([[1.0, -2.5, 1 / 3]], dtype=dtype)
    sent, ctx = compressor.compress(original)
    assert sent.dtype == wire and sent.shape == original.shape
    back = compressor.decompress(sent, ctx)
    assert back.dtype == dtype
    assert torch.equal(back, original.to(wire).to(dtype))


@pytest.mark.parametrize("kind", ["fp16", "bf16", "none"])
@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float16, torch.bfloat16]
)
def test_other_types_pass_through(kind: str, dtype: torch.dtype) -> None:
    compressor = getattr(Compression, kind)
    original = torch.ones(3).to(dtype)
    sent, ctx = compressor.compress(original)
    assert sent is original
    assert compressor.decompress(sent, ctx) is original


def test_the_interface_insists_on_both_methods() -> None:
    with pytest.raises(NotImplementedError, match="compress"):
        Compressor.compress(torch.ones(1))
    with pytest.raises(NotImplementedError, match="decompress"):
        Compressor.decompress(torch.ones(1), None)
