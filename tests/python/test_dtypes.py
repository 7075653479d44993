"""Every dtype that travels, with every operation that has a meaning for it."""

from __future__ import annotations

import pytest
import torch

import mydist as md

pytestmark = pytest.mark.usefixtures("job")

DTYPES = [
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.bool,
    torch.complex64,
    torch.complex128,
]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]


def has_meaning(op: md.ReduceOp, dtype: torch.dtype) -> bool:
    if dtype in FLOAT8:
        return False
    if op == md.Adasum:
        return dtype.is_floating_point
    if dtype.is_complex:
        return op not in (md.Min, md.Max)
    return not (dtype == torch.bool and op == md.Average)


@pytest.mark.parametrize("op", list(md.ReduceOp), ids=str)
@pytest.mark.parametrize("dtype", DTYPES + FLOAT8, ids=str)
def test_reductions_keep_the_value_or_say_why_not(dtype: torch.dtype, op: md.ReduceOp) -> None:
    tensor = torch.tensor([0, 1, 2, 3, 100]).to(dtype)
    if not has_meaning(op, dtype):
        with pytest.raises(ValueError, match=f"op {op} has no meaning for dtype {str(dtype)[6:]}"):
            md.allreduce(tensor, op=op)
        return
    reductions = [md.allreduce, md.reducescatter]
    if op == md.Adasum:
        reductions.remove(md.reducescatter)
        with pytest.raises(ValueError, match="Adasum"):
            md.reducescatter(tensor, op=op)
    for reduction in reductions:
        out = reduction(tensor, op=op)
        assert out.dtype == dtype and torch.equal(out, tensor)


@pytest.mark.parametrize("dtype", DTYPES + FLOAT8, ids=str)
def test_everything_else_moves_bits(dtype: torch.dtype) -> None:
    tensor = torch.randint(0, 256, (4, 16), dtype=torch.uint8)
    tensor = tensor > 127 if dtype == torch.bool else tensor.view(dtype)
    bits = tensor.view(torch.uint8)
    for out in (md.allgather(tensor), md.broadcast(tensor, 0), md.alltoall(tensor)):
        assert isinstance(out, torch.Tensor)
        assert out.dtype == dtype and torch.equal(out.view(torch.uint8), bits)
