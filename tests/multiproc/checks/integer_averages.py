"""Averages of integers against Python's own: no sum wraps, and quotients are truncated."""

from __future__ import annotations

import random

import torch

import mydist as md
from multiproc.checks.mismatch import expect_mismatch, expect_usable, odd
from multiproc.checks.process_sets import added, overlapping
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


@check(cases=[(dtype,) for dtype in INTEGERS])
def allreduce_in_every_form(dtype: torch.dtype) -> None:
    inputs = everybody(dtype)
    wanted = average(inputs)
    mine = inputs[md.rank()].clone()
    expect_equal(md.allreduce(mine, name=f"average.{dtype}"), wanted)
    expect_equal(mine, inputs[md.rank()])
    handle = md.allreduce_async(mine, name=f"average.async.{dtype}", op=md.Average)
    expect_equal(md.synchronize(handle), wanted)
    assert md.allreduce_(mine, name=f"average.in place.{dtype}") is mine
    expect_equal(mine, wanted)


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


@check()
def a_group_of_all_dtypes() -> None:
    inputs = [
        everybody(dtype, (3 + i, 4), seed=i) for i, dtype in enumerate((*INTEGERS, *INTEGERS))
    ]
    mine = [tensors[md.rank()].clone() for tensors in inputs]
    # A float among them is fused with none.
    extra = torch.full((3,), float(md.rank()))
    *results, real = md.grouped_allreduce([*mine, extra], name="average.group")
    for result, tensors in zip(results, inputs, strict=True):
        expect_equal(result, average(tensors))
    assert real.tolist() == [(md.size() - 1) / 2] * 3
    md.grouped_allreduce_(mine, name="average.group in place")
    for tensor, tensors in zip(mine, inputs, strict=True):
        expect_equal(tensor, average(tensors))


@check()
def many_in_flight() -> None:
    inputs = [everybody(INTEGERS[i % 5], (4 + i, 3), seed=i) for i in range(40)]
    handles = [
        md.allreduce_async(tensors[md.rank()], name=f"average.many.{i}")
        for i, tensors in enumerate(inputs)
    ]
    for handle, tensors in zip(handles, inputs, strict=True):
        expect_equal(md.synchronize(handle), average(tensors))


@check(cases=[(torch.uint8,), (torch.int64,)])
def large_tensors(dtype: torch.dtype) -> None:
    inputs = everybody(dtype, (300, 101))
    expect_equal(md.allreduce(inputs[md.rank()], name=f"average.large.{dtype}"), average(inputs))


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
def process_sets() -> None:
    with added(*overlapping()) as sets:
        for process_set in sets:
            if not process_set.included():
                continue
            for dtype in (torch.uint8, torch.int64):
                inputs = [tensor_of(rank, dtype) for rank in process_set.ranks]
                result = md.allreduce(
                    tensor_of(md.rank(), dtype),
                    name=f"average.set.{dtype}",
                    process_set=process_set,
                )
                expect_equal(result, average(inputs))


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


@check(cases=[(torch.int16,), (torch.int64,)])
def any_layout_and_shape(dtype: torch.dtype) -> None:
    for shape in ((0, 3), (4, 6)):
        inputs = [tensor_of(rank, dtype, (4, 6))[: shape[0]] for rank in range(md.size())]
        base = inputs[md.rank()].clone()
        columns = base[:, 1::2]
        wanted = average([tensor[:, 1::2] for tensor in inputs])
        name = f"average.layout.{dtype}.{shape}"
        expect_equal(md.allreduce(columns, name=name), wanted)
        md.allreduce_(columns, name=name)
        expect_equal(columns, wanted)
        expect_equal(base[:, ::2], inputs[md.rank()][:, ::2])
    lone = torch.tensor(-1 if md.rank() else -2, dtype=dtype)
    assert md.allreduce(lone, name=f"average.0-d.{dtype}").shape == ()
    deep = tensor_of(md.rank(), dtype, (4, 2)).reshape(4, 2, *([1] * 62))
    result = md.allreduce(deep, name=f"average.64-d.{dtype}")
    assert result.shape == deep.shape
    expect_equal(result.reshape(4, 2), average(everybody(dtype, (4, 2))))


@check(cases=[(torch.int32,), (torch.int64,)])
def inference_tensors_in_place(dtype: torch.dtype) -> None:
    inputs = everybody(dtype)
    with torch.inference_mode():
        mine = inputs[md.rank()].clone()
    md.allreduce_(mine, name=f"average.inference.{dtype}")
    expect_equal(mine.clone(), average(inputs))


@check(cases=[(dtype,) for dtype in INTEGERS])
def factors_truncate_and_saturate(dtype: torch.dtype) -> None:
    n, high = md.size(), torch.iinfo(dtype).max
    mine = torch.tensor([7, 5, 1, 9], dtype=dtype)
    half = md.allreduce(mine, name=f"average.pre.{dtype}", prescale_factor=0.5)
    assert half.tolist() == [3, 2, 0, 4]
    after = md.allreduce(mine * (md.rank() + 1), name=f"average.post.{dtype}", postscale_factor=2.5)
    total = n * (n + 1) // 2
    assert after.tolist() == [int(v * total * 2.5 / n) for v in (7, 5, 1, 9)]
    ends = torch.tensor([high], dtype=dtype)
    for name, factors in {
        "pre": {"prescale_factor": 3.0},
        "post": {"postscale_factor": 3.0},
    }.items():
        result = md.allreduce(ends, name=f"average.end.{name}.{dtype}", **factors)
        assert result.item() == high, name
    if dtype != torch.uint8:
        result = md.allreduce(-ends, name=f"average.low.{dtype}", postscale_factor=3.0)
        assert result.item() == torch.iinfo(dtype).min


def mixed(kind: str, name: str) -> torch.Tensor:
    """What only the last rank does differently."""
    tensor = torch.ones(3, dtype=torch.int64)
    if kind == "dtype":
        return md.allreduce(tensor.to(torch.uint8 if odd() else torch.int32), name=name)
    if kind == "op":
        return md.allreduce(tensor, name=name, op=md.Sum if odd() else md.Average)
    if kind == "shape":
        return md.allreduce(tensor[: 2 if odd() else 3], name=name)
    if kind == "halves":
        wide = torch.ones(3, 2, dtype=torch.int64)
        return md.allreduce(wide if odd() else tensor, name=name)
    return md.allreduce(tensor, name=name, postscale_factor=2.0 if odd() else 1.0)


MENTIONED = {
    "dtype": ["uint8", "int32"],
    "op": ["Average", "Sum"],
    "shape": ["[2]", "[3]"],
    "halves": ["[3]", "[3, 2]"],
    "postscale": ["2"],
}


@check(min_size=2, cases=[(kind,) for kind in MENTIONED])
def disagreements_name_what_was_passed(kind: str) -> None:
    name = f"average.mismatch.{kind}"
    expect_mismatch(name, lambda given: mixed(kind, given), MENTIONED[kind])
    expect_usable(name)
