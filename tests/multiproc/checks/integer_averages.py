"""Averages of integers against Python's own: no sum wraps, and quotients are truncated."""

from __future__ import annotations

import random

import torch

import mydist as md
from multiproc.reference import INTEGERS, expect_equal
from multiproc.registry import check


def values_of(rank: int, dtype: torch.dtype, count: int, seed: int = 0) -> list[int]:
    """The elements of one rank: ends of the dtype, small numbers and any others."""
    low, high = torch.iinfo(dtype).min, torch.iinfo(dtype).max
    generator = random.Random(f"{rank} {dtype} {count} {seed}")
    special = [low, low + 1, high, high - 1, 0, 1, max(low, -1), max(low, -2)]
    numbers = [generator.choice([*special, generator.randint(low, high)]) for _ in range(count - 4)]
    # On all ranks together: the largest sum, the smallest one, and two odd ones.
    return [high, low, (-1 if low else 1) * (rank == 0), max(low, -3) + rank % 2, *numbers]


def tensor_of(
    rank: int, dtype: torch.dtype, shape: tuple[int, ...] = (5, 7), seed: int = 0
) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return torch.tensor(values_of(rank, dtype, count, seed), dtype=dtype).reshape(shape)


def average(tensors: list[torch.Tensor], divisor: int | None = None) -> torch.Tensor:
    """Computed in Python's integers, which have no end."""
    divisor = divisor or len(tensors)
    columns = zip(*(tensor.flatten().tolist() for tensor in tensors), strict=True)
    totals = [sum(column) for column in columns]
    numbers = [abs(total) // divisor * (1 if total > 0 else -1) for total in totals]
    return torch.tensor(numbers, dtype=tensors[0].dtype).reshape(tensors[0].shape)


def everybody(
    dtype: torch.dtype, shape: tuple[int, ...] = (5, 7), seed: int = 0
) -> list[torch.Tensor]:
    return [tensor_of(rank, dtype, shape, seed) for rank in range(md.size())]


@check()
def a_sum_beyond_the_dtype() -> None:
    result = md.allreduce(torch.tensor([200, 255], dtype=torch.uint8), name="average.200")
    assert result.tolist() == [200, 255]


@check(min_size=2)
def negative_quotients_are_truncated() -> None:
    total = -md.size() - 1  # As -3 / 2 is -1, and not -2.
    mine = torch.tensor([total if md.rank() == 0 else 0], dtype=torch.int64)
    for dtype in (torch.int8, torch.int16, torch.int32, torch.int64):
        assert md.allreduce(mine.to(dtype), name=f"average.negative.{dtype}").item() == -1


def my_rows(tensor: torch.Tensor) -> torch.Tensor:
    """As reducescatter deals them out: the first ranks get one row more."""
    return tensor.tensor_split(md.size())[md.rank()]


@check(cases=[(dtype,) for dtype in INTEGERS])
def reducescatter(dtype: torch.dtype) -> None:
    inputs = everybody(dtype, (7, 2, 3))
    result = md.reducescatter(inputs[md.rank()], op=md.Average, name=f"average.rows.{dtype}")
    expect_equal(result, my_rows(average(inputs)))
    flat = [tensor.flatten() for tensor in inputs]
    pieces = md.grouped_reducescatter(
        [flat[md.rank()], inputs[md.rank()]], op=md.Average, name=f"average.rows group.{dtype}"
    )
    expect_equal(pieces[0], my_rows(average(flat)))
    expect_equal(pieces[1], my_rows(average(inputs)))


@check(cases=[(dtype,) for dtype in INTEGERS])
def reduce_to_each_root(dtype: torch.dtype) -> None:
    inputs = everybody(dtype)
    for root in range(md.size()):
        result = md.reduce(inputs[md.rank()], root, name=f"average.root.{dtype}")
        if md.rank() == root:
            assert result is not None
            expect_equal(result, average(inputs))
        else:
            assert result is None


@check(min_size=2, cases=[(dtype,) for dtype in INTEGERS])
def sparse(dtype: torch.dtype) -> None:
    inputs = everybody(dtype, (6,))
    indices, values = torch.arange(6), inputs[md.rank()]
    if md.rank() == 0:  # Twice an index, whose sum is beyond the dtype on this rank already.
        indices = torch.cat([indices, torch.tensor([6, 6])])
        values = torch.cat([values, torch.tensor([torch.iinfo(dtype).max] * 2, dtype=dtype)])
    mine = torch.sparse_coo_tensor(indices[None], values, (9,), check_invariants=True)
    got = md.synchronize(md.sparse_allreduce_async(mine, name=f"average.sparse.{dtype}"))
    assert got.indices().tolist() == [list(range(7))]
    expect_equal(got.values()[:6], average(inputs))
    assert got.values()[6].item() == 2 * torch.iinfo(dtype).max // md.size()


@check(min_size=2)
def joined_ranks_count() -> None:
    active = range(md.size() - 1)
    if md.rank() in active:
        for dtype in (torch.uint8, torch.int8, torch.int64):
            for call in range(2):
                inputs = [tensor_of(rank, dtype, (6, 2), seed=call) for rank in active]
                wanted = average(inputs, md.size())
                mine = inputs[md.rank()]
                expect_equal(md.allreduce(mine, name=f"average.join.{dtype}"), wanted)
                # The rows of the joined rank, the last one, go nowhere.
                rows = md.reducescatter(mine, op=md.Average, name=f"average.join.rows.{dtype}")
                expect_equal(rows, my_rows(wanted))
                result = md.reduce(mine, 0, name=f"average.join.root.{dtype}")
                if result is not None:
                    expect_equal(result, wanted)
    md.join()
