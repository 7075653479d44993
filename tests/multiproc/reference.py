"""What a collective must give, computed in one process from the inputs of all ranks.

Inputs are made from seeds, so every rank knows the inputs of all others.
"""

from __future__ import annotations

import functools
import math

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COMPLEX = (torch.complex64, torch.complex128)
DTYPES = (*FLOATS, *INTEGERS, torch.bool, *COMPLEX)
# Of what only travels.
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
MOVED = (*DTYPES, *FLOAT8)


def make(
    rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (33, 7), seed: int = 0
) -> torch.Tensor:
    """The input of one rank: small values, so that sums of integers do not overflow."""
    generator = torch.Generator().manual_seed(7919 * seed + rank)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype in INTEGERS:
        low = 0 if dtype == torch.uint8 else -3
        return torch.randint(low, 4, shape, generator=generator).to(dtype)
    if dtype in COMPLEX:
        return torch.randn(shape, generator=generator, dtype=torch.complex128).to(dtype)
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """In the type that references are computed in."""
    if tensor.is_complex():
        return tensor.to(torch.complex128)
    if tensor.is_floating_point():
        return tensor.double()
    return tensor if tensor.dtype == torch.bool else tensor.long()


def reduce(inputs: list[torch.Tensor], op: str) -> torch.Tensor:
    """The wide result of reducing in rank order."""
    terms = [wide(tensor) for tensor in inputs]
    if terms[0].dtype == torch.bool:
        combine = torch.logical_or if op in ("Sum", "Max") else torch.logical_and
    else:
        combine = {
            "Sum": torch.add,
            "Average": torch.add,
            "Product": torch.mul,
            "Min": torch.minimum,
            "Max": torch.maximum,
        }[op]
    total = functools.reduce(combine, terms)
    if op != "Average":
        return total
    if total.dtype == torch.int64:
        return torch.div(total, len(inputs), rounding_mode="trunc")
    return total / len(inputs)


def has_meaning(op: str, dtype: torch.dtype) -> bool:
    if dtype in FLOAT8:
        return False
    if dtype in COMPLEX:
        return op not in ("Min", "Max")
    return not (dtype == torch.bool and op == "Average")


def expect_close(
    got: torch.Tensor, wanted: torch.Tensor, magnitude: torch.Tensor | None = None
) -> None:
    """`got`, wherever it lies, is `wanted` rounded once to its type; exactly equal for integers and
    bool.

    Args:
        got: what the collective gave.
        wanted: the wide reference, same shape.
        magnitude: sum of the absolute inputs, for results that cancel; default: |wanted|.
    """
    got = got.cpu()
    assert got.shape == wanted.shape, f"shape {tuple(got.shape)}, expected {tuple(wanted.shape)}"
    if not (got.is_floating_point() or got.is_complex()):
        expect_equal(got, wanted.to(got.dtype))
        return
    real = got.real.dtype if got.is_complex() else got.dtype
    size = wanted.abs() if magnitude is None else magnitude
    accumulate = torch.finfo(torch.float64 if real == torch.float64 else torch.float32).eps
    bound = 8 * accumulate * size
    if real in (torch.float16, torch.bfloat16):
        smallest = torch.finfo(real).smallest_normal * torch.finfo(real).eps
        bound = bound + 0.5 * ulp(wanted, real) + smallest
    error = (wide(got) - wanted).abs()
    worst = int(torch.argmax(error - bound)) if error.numel() else 0
    assert bool((error <= bound).all()), (
        f"{got.dtype}: element {worst} is {got.flatten()[worst]}, "
        f"expected {wanted.flatten()[worst]} within {bound.flatten()[worst]:.3g}"
    )


def expect_near(got: torch.Tensor, wanted: torch.Tensor, bound: float, what: str) -> None:
    """Same shape, and values equal within `bound`, absolute or relative. NaN is no value.

    In place of torch.testing, whose first use costs each rank a second of imports.
    """
    assert got.shape == wanted.shape, (
        f"{what}: shape {tuple(got.shape)}, expected {tuple(wanted.shape)}"
    )
    got, wanted = wide(got.detach()), wide(wanted.detach())
    error = (got - wanted).abs() / wanted.abs().clamp(min=1.0)
    assert bool((error <= bound).all()), (
        f"{what}: got {got.flatten()[:8]}, expected {wanted.flatten()[:8]}; the largest error is "
        f"{error.max()}, allowed is {bound}"
    )


def ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Distance of neighbours of `dtype` at each value."""
    _, exponent = torch.frexp(values.abs())
    return torch.ldexp(torch.full_like(values, torch.finfo(dtype).eps), exponent - 1)


def expect_equal(got: torch.Tensor, wanted: torch.Tensor) -> None:
    """Same dtype, shape and values (NaN equals NaN), wherever they lie."""
    got, wanted = got.cpu(), wanted.cpu()
    assert got.dtype == wanted.dtype, f"dtype {got.dtype}, expected {wanted.dtype}"
    assert got.shape == wanted.shape, f"shape {tuple(got.shape)}, expected {tuple(wanted.shape)}"
    same = torch.equal(got, wanted) or raw(got) == raw(wanted)
    assert same, f"values differ: got {got.flatten()[:8]}, expected {wanted.flatten()[:8]}"


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of the elements, row-major."""
    flat = tensor.detach().contiguous().flatten()
    return flat.view(torch.uint8).numpy().tobytes() if math.prod(flat.shape) else b""
