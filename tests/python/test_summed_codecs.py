"""Codecs whose payloads can be added up, without ranks: random places and narrow matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest
import torch

import mydist as md
from mydist import _C
from mydist.codecs.codec import Codec
from mydist.optim.encoding.drawn_sums import draw, pieces_of

C = md.Compression


def random_values(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("ratio", "count", "kept"), [(0.07, 100, 7), (0.001, 1500, 2), (1e-9, 5, 1), (1.0, 9, 9)]
)
def test_a_ratio_keeps_so_many_values(ratio: float, count: int, kept: int) -> None:
    assert pieces_of(count, ratio).numel() - 1 == kept


@pytest.mark.parametrize(("length", "ratio"), [(5000, 0.01), (4097, 0.3), (4096, 1.0)])
def test_places_are_drawn_one_a_piece(length: int, ratio: float) -> None:
    begins = pieces_of(length, ratio)
    state = torch.get_rng_state()
    drawn = draw(begins, 5)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(drawn, draw(begins, 5))
    assert (begins[:-1] <= drawn).all() and (drawn < begins[1:]).all()
    if ratio < 1:
        assert not torch.equal(drawn, draw(begins, 6))
        counts = torch.zeros(length)
        for key in range(2000):
            counts[draw(begins, key)] += 1
        # Each is drawn as often as any other: within 5 standard deviations.
        shares = 1 / begins.diff().repeat_interleave(begins.diff()).double()
        deviation = (2000 * shares * (1 - shares)).sqrt()
        assert ((counts - 2000 * shares).abs() < 5 * deviation).all()


@pytest.mark.parametrize(("rows", "columns", "rank"), [(1, 7, 1), (33, 65, 4), (64, 200, 2)])
def test_products_of_narrow_matrices_are_near_those_of_float64(
    rows: int, columns: int, rank: int
) -> None:
    values, residual = random_values(rows * columns), random_values(rows * columns, 1)
    q, p = random_values(rank * columns, 2), torch.empty(rank * rows)
    m = (values.double() + residual.double() * 0.5).view(rows, columns)
    _C.low_rank_times(values, residual, 0.5, rows, q, p)
    assert_near(p, (m @ q.double().view(rank, columns).T).T)
    back = torch.empty(rank * columns)
    _C.low_rank_transposed_times(values, residual, 0.5, rows, p, back)
    wide_p = p.double().view(rank, rows)
    assert_near(back, wide_p @ m)
    out = torch.full((rows * columns,), math.nan)
    _C.low_rank_product(p, q, rows, 0.25, out)
    product = wide_p.T @ q.double().view(rank, columns)
    assert_near(out, 0.25 * product)
    _C.low_rank_keep(values, residual, 0.5, rows, p, q)
    assert_near(residual, m - product)


def assert_near(got: torch.Tensor, expected: torch.Tensor) -> None:
    expected = expected.reshape(-1)
    assert (got.double().reshape(-1) - expected).abs().max() <= 1e-5 * (1 + expected.abs().max())


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_columns_become_orthogonal(scale: float) -> None:
    columns = random_values(4 * 100).view(4, 100) * scale
    columns[1] = columns[0] * (1 + 1e-3) + 1e-3 * columns[1]
    before = columns.double() / scale
    _C.orthogonalize(columns.view(-1), 100)
    assert_near(columns.double() @ columns.double().T, torch.eye(4, dtype=torch.float64))
    # They span the same.
    wide = columns.double()
    assert_near(before @ wide.T @ wide, before)


def test_a_column_that_depends_on_others_becomes_zero() -> None:
    column = random_values(100)
    columns = torch.stack([column, 3 * column, torch.zeros(100), random_values(100, 1)])
    _C.orthogonalize(columns.view(-1), 100)
    assert columns.norm(dim=1).round().tolist() == [1, 0, 0, 1]


@pytest.mark.parametrize("rows", [0, 7, -1])
def test_factors_that_do_not_fit_are_refused(rows: int) -> None:
    with pytest.raises(ValueError, match="the factors do not fit"):
        _C.low_rank_product(torch.zeros(5), torch.zeros(4), rows, 1.0, torch.zeros(20))


def shapes_taken(codec: Codec) -> Iterable[bool]:
    return [codec.takes(shape) for shape in ((5000,), (2, 5000), (64, 3, 5, 5), (0, 9), ())]


def test_powersgd_takes_matrices_that_it_makes_smaller() -> None:
    assert shapes_taken(C.powersgd(rank=1)) == [False, True, True, False, False]
    assert shapes_taken(C.powersgd(rank=2)) == [False, False, True, False, False]


@pytest.mark.parametrize(
    "make",
    [
        lambda: C.randomk(-0.1),
        lambda: C.randomk(seed=-1),
        lambda: C.powersgd(rank=0),
        lambda: C.powersgd(start=-1),
    ],
)
def test_a_wrong_argument_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"Compression\.\w+: \w+ is .*, expected"):
        make()  # type: ignore[operator]
