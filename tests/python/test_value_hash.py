"""value_hash: the same bytes give the same number, other bytes another one."""

from __future__ import annotations

import pytest
import torch

from mydist.optim.value_hash import _weights, value_hash

DTYPES = [
    torch.bool,
    torch.uint8,
    torch.int16,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.float8_e4m3fn,
]
ROW = 1 << 16
MODULUS = 1 << 64


def splitmix64(count: int) -> list[int]:
    """The published generator in plain integers, from state 0."""
    numbers = []
    for i in range(1, count + 1):
        z = i * 0x9E3779B97F4A7C15 % MODULUS
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % MODULUS
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % MODULUS
        numbers.append(z ^ (z >> 31))
    return numbers


def reference(words: list[int]) -> int:
    weights = splitmix64(min(len(words), ROW))
    rows = [words[i : i + ROW] for i in range(0, len(words), ROW)]
    sums = [sum(w * x for w, x in zip(weights, row, strict=False)) % MODULUS for row in rows]
    if len(sums) == 1:
        return sums[0]
    signed = [half - (half >> 31 << 32) for s in sums for half in (s % (1 << 32), s >> 32)]
    return reference(signed)


@pytest.mark.parametrize("count", [1, 2, 1000, ROW, ROW + 1, 2 * ROW + 5])
def test_it_is_the_documented_formula(count: int) -> None:
    words = torch.randint(-(2**31), 2**31, (count,), generator=torch.Generator().manual_seed(1))
    got = int(value_hash(words.to(torch.int32))) % MODULUS
    assert got == reference(words.tolist())


def test_the_weights_are_splitmix64() -> None:
    weights = [int(w) % MODULUS for w in _weights(torch.device("cpu"))[:100]]
    # The first two are known from the generator's publication, seed 0.
    assert weights[:2] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]
    assert weights == splitmix64(100)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (1,), (3,), (7, 5), (0,)], ids=str)
def test_every_dtype_and_shape(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape).to(dtype)
    assert value_hash(tensor).dtype == torch.int64 and value_hash(tensor).shape == ()
    assert int(value_hash(tensor)) == int(value_hash(tensor.clone()))
    if tensor.numel():
        assert int(value_hash(tensor)) != int(value_hash(torch.zeros(shape).to(dtype)))


def test_every_single_bit_counts() -> None:
    words = torch.randint(-(2**31), 2**31, (70,)).to(torch.int32)
    seen = {int(value_hash(words))}
    for index in range(70):
        for bit in range(32):
            flipped = words.clone()
            flipped[index] ^= 1 << bit if bit < 31 else -(2**31)
            seen.add(int(value_hash(flipped)))
    assert len(seen) == 70 * 32 + 1


def test_sign_flips_in_two_places_do_not_cancel() -> None:
    tensor = torch.ones(2 * ROW)
    flipped = tensor.clone()
    flipped[[1, 3, ROW + 1, ROW + 3]] *= -1
    assert int(value_hash(tensor)) != int(value_hash(flipped))


def test_places_count() -> None:
    one, other = torch.zeros(3 * ROW), torch.zeros(3 * ROW)
    one[5], other[ROW + 5] = 1.0, 1.0
    assert int(value_hash(one)) != int(value_hash(other))


def test_views_hash_as_what_they_show() -> None:
    base = torch.arange(40, dtype=torch.int16)
    for view in (base[1:8], base.view(5, 8).t(), base[::3], base[:1].expand(6)):
        assert int(value_hash(view)) == int(value_hash(view.contiguous().clone()))
    conjugated = torch.tensor([1 + 2j, 3 - 1j]).conj()
    assert int(value_hash(conjugated)) == int(value_hash(conjugated.resolve_conj()))


def test_nan_equals_itself_and_zeros_of_both_signs_differ() -> None:
    nan = torch.tensor([float("nan"), 1.0])
    assert int(value_hash(nan)) == int(value_hash(nan.clone()))
    assert int(value_hash(torch.tensor([0.0]))) != int(value_hash(torch.tensor([-0.0])))


def test_a_parameter_that_requires_grad() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    assert not value_hash(parameter).requires_grad
    assert int(value_hash(parameter)) == int(value_hash(torch.ones(3)))
