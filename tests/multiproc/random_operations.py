"""Collectives drawn at random, each compared with what one process computes from the seed.

Every rank draws the same. An operation is started, and hands back what finishes and checks it, so
that several are in flight and end in any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import mydist as md
from multiproc.checks.ops import REDUCE_OPS
from multiproc.reference import (
    DTYPES,
    FLOATS,
    MOVED,
    expect_close,
    expect_equal,
    has_meaning,
    make,
    reduce,
)

Finish = Callable[[], None]
# Empty, single, odd, around the sizes of cache lines, pieces and slots, and of several pages.
COUNTS = (0, 1, 2, 3, 7, 63, 64, 65, 257, 1_000, 4_097, 65_537)
LARGE = 400_003
_ROWS = (0, 1, 2, 5, 33)


@dataclass
class Draw:
    """The circumstances of one operation, equal on all ranks."""

    rng: random.Random
    seed: int  # Of the inputs.
    process_set: md.ProcessSet
    name: str | None
    is_async: bool

    def __post_init__(self) -> None:
        self.ranks: Sequence[int] = self.process_set.ranks
        self.index = self.process_set.rank()

    def shape(self) -> tuple[int, ...]:
        if self.rng.random() < 0.01:
            return (LARGE,)
        count = self.rng.choice(COUNTS)
        return self.rng.choice([(count,), (count, 1), (3, count), (2, 0, count), ()])

    def inputs(
        self, dtype: torch.dtype, shape: tuple[int, ...], which: int = 0
    ) -> list[torch.Tensor]:
        """Of all members."""
        return [make(rank, dtype, shape, seed=31 * self.seed + which) for rank in self.ranks]

    def call(self, function: str, *arguments: Any, in_place: bool = False, **named: Any) -> Any:
        """Calls one form of a collective; gives what waits for its outputs."""
        form = f"{function}{'_async' if self.is_async else ''}{'_' if in_place else ''}"
        got = getattr(md, form)(*arguments, name=self.name, process_set=self.process_set, **named)
        return (lambda: md.synchronize(got)) if self.is_async else (lambda: got)

    def reduction(self, dtype: torch.dtype) -> tuple[str, float, float]:
        """An op with a meaning, and the factors around it: powers of two, which round nothing."""
        op = self.rng.choice([op for op in REDUCE_OPS if has_meaning(op, dtype)])
        if dtype not in FLOATS or op not in ("Sum", "Average") or self.rng.random() < 0.7:
            return op, 1.0, 1.0
        return op, self.rng.choice([0.5, 2.0]), self.rng.choice([0.25, 4.0])


def _expect_reduced(
    got: torch.Tensor, inputs: list[torch.Tensor], op: str, factor: float, rows: slice | None = None
) -> None:
    wanted = reduce(inputs, op)
    magnitude = None
    if inputs[0].dtype.is_floating_point or inputs[0].dtype.is_complex:
        wanted = wanted * factor
        if op not in ("Min", "Max"):
            terms = [tensor.abs().double() for tensor in inputs]
            magnitude = reduce(terms, "Product" if op == "Product" else "Sum") * factor
    if rows is not None:
        wanted = wanted[rows]
        magnitude = None if magnitude is None else magnitude[rows]
    expect_close(got, wanted, magnitude)


def _share(rows: int, size: int, index: int) -> slice:
    """The rows of one member when they are dealt out as evenly as possible."""
    start = index * (rows // size) + min(index, rows % size)
    return slice(start, start + rows // size + (index < rows % size))


def allreduce(draw: Draw) -> Finish:
    dtype, shape = draw.rng.choice(DTYPES), draw.shape()
    op, before, after = draw.reduction(dtype)
    inputs = draw.inputs(dtype, shape)
    in_place = draw.rng.random() < 0.5
    mine = inputs[draw.index].clone()
    factors = {"prescale_factor": before, "postscale_factor": after}
    outputs = draw.call("allreduce", mine, op=REDUCE_OPS[op], in_place=in_place, **factors)

    def finish() -> None:
        got = outputs()
        _expect_reduced(got, inputs, op, before * after)
        expect_equal(mine, got if in_place else inputs[draw.index])

    return finish


def grouped_allreduce(draw: Draw) -> Finish:
    dtype = draw.rng.choice(DTYPES)
    op, before, after = draw.reduction(dtype)
    groups = [draw.inputs(dtype, draw.shape(), i) for i in range(draw.rng.randint(1, 4))]
    in_place = draw.rng.random() < 0.5
    mine = [inputs[draw.index].clone() for inputs in groups]
    factors = {"prescale_factor": before, "postscale_factor": after}
    outputs = draw.call("grouped_allreduce", mine, op=REDUCE_OPS[op], in_place=in_place, **factors)

    def finish() -> None:
        for got, inputs in zip(outputs(), groups, strict=True):
            _expect_reduced(got, inputs, op, before * after)

    return finish


def _rows_of(draw: Draw, count: int) -> tuple[int, ...]:
    return (count, draw.rng.choice([1, 3, 129]))


def reducescatter(draw: Draw) -> Finish:
    dtype = draw.rng.choice(DTYPES)
    op, before, after = draw.reduction(dtype)
    is_group = draw.rng.random() < 0.3
    shapes = [_rows_of(draw, draw.rng.choice(_ROWS)) for _ in range(2 if is_group else 1)]
    groups = [draw.inputs(dtype, shape, i) for i, shape in enumerate(shapes)]
    mine = [inputs[draw.index].clone() for inputs in groups]
    factors = {"prescale_factor": before, "postscale_factor": after}
    stem = "grouped_reducescatter" if is_group else "reducescatter"
    outputs = draw.call(stem, mine if is_group else mine[0], op=REDUCE_OPS[op], **factors)

    def finish() -> None:
        for got, inputs in zip(outputs() if is_group else [outputs()], groups, strict=True):
            rows = _share(len(inputs[0]), len(draw.ranks), draw.index)
            _expect_reduced(got, inputs, op, before * after, rows)

    return finish


def rooted_reduce(draw: Draw) -> Finish:
    dtype, shape, root = draw.rng.choice(DTYPES), draw.shape(), draw.rng.choice(draw.ranks)
    op, before, after = draw.reduction(dtype)
    inputs = draw.inputs(dtype, shape)
    factors = {"prescale_factor": before, "postscale_factor": after}
    outputs = draw.call("reduce", inputs[draw.index].clone(), root, op=REDUCE_OPS[op], **factors)

    def finish() -> None:
        got = outputs()
        assert (got is not None) == (md.rank() == root)
        if got is not None:
            _expect_reduced(got, inputs, op, before * after)

    return finish


def _pieces(draw: Draw, dtype: torch.dtype, which: int = 0) -> list[torch.Tensor]:
    width = draw.rng.choice([1, 3, 129])
    return [
        make(rank, dtype, (draw.rng.choice(_ROWS), width), seed=31 * draw.seed + which)
        for rank in draw.ranks
    ]


def allgather(draw: Draw) -> Finish:
    dtype, is_group = draw.rng.choice(MOVED), draw.rng.random() < 0.3
    groups = [_pieces(draw, dtype, i) for i in range(2 if is_group else 1)]
    mine = [pieces[draw.index] for pieces in groups]
    outputs = draw.call(
        "grouped_allgather" if is_group else "allgather", mine if is_group else mine[0]
    )

    def finish() -> None:
        for got, pieces in zip(outputs() if is_group else [outputs()], groups, strict=True):
            expect_equal(got, torch.cat(pieces))

    return finish


def gather(draw: Draw) -> Finish:
    pieces, root = _pieces(draw, draw.rng.choice(MOVED)), draw.rng.choice(draw.ranks)
    outputs = draw.call("gather", pieces[draw.index], root)

    def finish() -> None:
        got = outputs()
        assert (got is not None) == (md.rank() == root)
        if got is not None:
            expect_equal(got, torch.cat(pieces))

    return finish


def broadcast(draw: Draw) -> Finish:
    dtype, shape, root = draw.rng.choice(MOVED), draw.shape(), draw.rng.choice(draw.ranks)
    wanted, in_place = make(root, dtype, shape, seed=31 * draw.seed), draw.rng.random() < 0.5
    mine = make(md.rank(), dtype, shape, seed=31 * draw.seed).clone()
    outputs = draw.call("broadcast", mine, root, in_place=in_place)
    return lambda: expect_equal(outputs(), wanted)


def alltoall(draw: Draw) -> Finish:
    size, dtype = len(draw.ranks), draw.rng.choice(MOVED)
    splits = [[draw.rng.choice(_ROWS) for _ in range(size)] for _ in range(size)]
    width = draw.rng.choice([1, 3, 129])
    inputs = [
        make(rank, dtype, (sum(rows), width), seed=31 * draw.seed)
        for rank, rows in zip(draw.ranks, splits, strict=True)
    ]
    outputs = draw.call("alltoall", inputs[draw.index], splits[draw.index])
    parts = [tensor.split(rows)[draw.index] for tensor, rows in zip(inputs, splits, strict=True)]

    def finish() -> None:
        got, received = outputs()
        expect_equal(got, torch.cat(parts))
        assert received.tolist() == [rows[draw.index] for rows in splits]

    return finish


def scatter(draw: Draw) -> Finish:
    dtype, root, size = draw.rng.choice(MOVED), draw.rng.choice(draw.ranks), len(draw.ranks)
    splits = [draw.rng.choice(_ROWS) for _ in range(size)] if draw.rng.random() < 0.5 else None
    rows = sum(splits) if splits else draw.rng.choice(_ROWS)
    shape = _rows_of(draw, rows)
    whole = make(root, dtype, shape, seed=31 * draw.seed)
    mine = whole if md.rank() == root else torch.empty(0, shape[1], dtype=dtype)
    outputs = draw.call("scatter", mine, splits, root)
    wanted = whole.split(splits)[draw.index] if splits else whole[_share(rows, size, draw.index)]
    return lambda: expect_equal(outputs(), wanted)


def pair(draw: Draw) -> Finish:
    """One member sends to another; the rest have no part in it."""
    dtype, shape = draw.rng.choice(MOVED), draw.shape()
    if len(draw.ranks) == 1:
        return lambda: None
    source, target = draw.rng.sample(list(draw.ranks), 2)
    sent = make(source, dtype, shape, seed=31 * draw.seed)
    if md.rank() == source:
        outputs = draw.call("send", sent, target)
        return lambda: _expect_none(outputs())
    if md.rank() == target:
        outputs = draw.call("recv", torch.zeros_like(sent), source)
        return lambda: expect_equal(outputs(), sent)
    return lambda: None


def _expect_none(got: object) -> None:
    assert got is None


def objects(draw: Draw) -> Finish:
    root, number = draw.rng.choice(draw.ranks), draw.seed
    everyone = md.allgather_object(
        {"rank": md.rank(), "number": number}, name=draw.name, process_set=draw.process_set
    )
    assert everyone == [{"rank": rank, "number": number} for rank in draw.ranks]
    one = md.broadcast_object([md.rank()], root, process_set=draw.process_set)
    assert one == [root]
    return lambda: None


def barrier(draw: Draw) -> Finish:
    md.barrier(draw.process_set)
    return lambda: None


def mismatch(draw: Draw) -> Finish:
    """The ranks disagree: all of them hear of it, and the job goes on."""
    odd = draw.index % 2 == 1
    dtype, shape, op = torch.float32, (5,), md.Sum
    what = draw.rng.choice(["dtype", "shape", "op"])
    if odd:
        dtype = torch.int64 if what == "dtype" else dtype
        shape = (6,) if what == "shape" else shape
        op = md.Max if what == "op" else op
    tensor = torch.zeros(shape, dtype=dtype)
    if len(draw.ranks) == 1:
        return lambda: None
    form = Draw(draw.rng, draw.seed, draw.process_set, draw.name, is_async=True)
    outputs = form.call("allreduce", tensor, op=op)

    def finish() -> None:
        try:
            outputs()
        except md.MismatchError:
            return
        raise AssertionError(f"ranks with different {what} got a result")

    return finish


def refused(draw: Draw) -> Finish:
    """Wrong calls that are found before any other rank hears of them."""
    tensor = torch.zeros(4)
    outside = md.size() + draw.rng.randrange(3)
    for call in (
        lambda: md.broadcast(tensor, outside, process_set=draw.process_set),
        lambda: md.alltoall(tensor, [1] * (len(draw.ranks) + 1), process_set=draw.process_set),
    ):
        try:
            call()
        except ValueError:
            continue
        raise AssertionError("a wrong call was not refused")
    return lambda: None


OPERATIONS: dict[str, tuple[Callable[[Draw], Finish], int]] = {
    "allreduce": (allreduce, 8),
    "grouped_allreduce": (grouped_allreduce, 4),
    "reducescatter": (reducescatter, 3),
    "reduce": (rooted_reduce, 2),
    "allgather": (allgather, 3),
    "gather": (gather, 2),
    "broadcast": (broadcast, 3),
    "alltoall": (alltoall, 3),
    "scatter": (scatter, 2),
    "pair": (pair, 2),
    "objects": (objects, 1),
    "barrier": (barrier, 1),
    "mismatch": (mismatch, 1),
    "refused": (refused, 1),
}
