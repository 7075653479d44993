"""allgather, alltoall and reducescatter, even and uneven."""

from __future__ import annotations

import torch

import mydist as md
from multiproc.checks.ops import REDUCE_OPS
from multiproc.reference import (
    DTYPES,
    MOVED,
    expect_close,
    expect_equal,
    has_meaning,
    make,
    reduce,
    wide,
)
from multiproc.registry import check

REDUCED = [
    (dtype, op)
    for dtype in DTYPES
    for op in REDUCE_OPS
    if has_meaning(op, dtype) and dtype != torch.bool
]


@check(cases=[(dtype,) for dtype in MOVED])
def allgather_even(dtype: torch.dtype) -> None:
    inputs = [make(rank, dtype, (3, 4)) for rank in range(md.size())]
    expect_equal(md.allgather(inputs[md.rank()], name=f"ag.{dtype}"), torch.cat(inputs))


@check(cases=[(dtype,) for dtype in MOVED])
def allgather_uneven(dtype: torch.dtype) -> None:
    inputs = [make(rank, dtype, (2 * rank + 1, 3), seed=1) for rank in range(md.size())]
    expect_equal(md.allgather(inputs[md.rank()], name=f"agu.{dtype}"), torch.cat(inputs))


@check()
def allgather_with_no_rows_somewhere() -> None:
    for empty in range(md.size()):
        inputs = [
            make(rank, torch.float32, (0 if rank == empty else rank + 2, 5), seed=2)
            for rank in range(md.size())
        ]
        expect_equal(md.allgather(inputs[md.rank()], name=f"ag0.{empty}"), torch.cat(inputs))


@check()
def allgather_changing_rows_under_one_name() -> None:
    for step in range(4):
        inputs = [
            make(rank, torch.int64, ((rank + step) % 3, 2), seed=3) for rank in range(md.size())
        ]
        expect_equal(md.allgather(inputs[md.rank()], name="ag.changing"), torch.cat(inputs))


@check()
def allgather_scalar_and_all_empty() -> None:
    scalar = md.allgather(torch.tensor(float(md.rank())), name="ag.scalar")
    expect_equal(scalar, torch.arange(md.size(), dtype=torch.float32))
    nothing = md.allgather(torch.empty(0, 3), name="ag.empty")
    assert nothing.shape == (0, 3)


@check()
def allgather_of_a_view_and_async() -> None:
    inputs = [make(rank, torch.float32, (4, 6), seed=4).t()[1::2] for rank in range(md.size())]
    handle = md.allgather_async(inputs[md.rank()], name="ag.view")
    expect_equal(md.synchronize(handle), torch.cat(inputs))


@check()
def grouped_allgather_gives_every_member() -> None:
    inputs = [
        [make(rank, dtype, (rank + i, 2), seed=5) for rank in range(md.size())]
        for i, dtype in enumerate((torch.float32, torch.int64, torch.bool))
    ]
    mine = [tensors[md.rank()] for tensors in inputs]
    for results in (
        md.grouped_allgather(mine, name="ag.group"),
        md.synchronize(md.grouped_allgather_async(mine, name="ag.group")),
    ):
        for tensors, result in zip(inputs, results, strict=True):
            expect_equal(result, torch.cat(tensors))


def rows_sent(sender: int, receiver: int) -> int:
    """Uneven, with zeros, and asymmetric."""
    return (sender + 2 * receiver) % 3


@check(cases=[(dtype,) for dtype in MOVED])
def alltoall_with_splits(dtype: torch.dtype) -> None:
    n, me = md.size(), md.rank()
    splits = [[rows_sent(s, r) for r in range(n)] for s in range(n)]
    inputs = [make(s, dtype, (sum(splits[s]), 3), seed=6) for s in range(n)]
    wanted = torch.cat([inputs[s].split(splits[s])[me] for s in range(n)])
    output, received = md.alltoall(inputs[me], splits=splits[me], name=f"a2a.{dtype}")
    expect_equal(output, wanted)
    assert received.tolist() == [splits[s][me] for s in range(n)]


@check()
def alltoall_even_without_splits() -> None:
    n, me = md.size(), md.rank()
    inputs = [make(s, torch.float32, (2 * n, 2), seed=7) for s in range(n)]
    wanted = torch.cat([inputs[s].chunk(n)[me] for s in range(n)])
    expect_equal(md.alltoall(inputs[me], name="a2a.even"), wanted)
    output = md.synchronize(md.alltoall_async(inputs[me], name="a2a.even"))
    expect_equal(output, wanted)


@check()
def alltoall_splits_as_tensor_and_changing() -> None:
    n, me = md.size(), md.rank()
    for step in range(4):
        splits = [[rows_sent(s + step, r) for r in range(n)] for s in range(n)]
        inputs = [make(s, torch.int32, (sum(splits[s]), 2), seed=8 + step) for s in range(n)]
        output, _ = md.alltoall(inputs[me], splits=torch.tensor(splits[me]), name="a2a.changing")
        expect_equal(output, torch.cat([inputs[s].split(splits[s])[me] for s in range(n)]))


def my_rows(tensor: torch.Tensor) -> torch.Tensor:
    """This rank's share: the first dim0 % size ranks get one row more."""
    return torch.tensor_split(tensor, md.size())[md.rank()]


def magnitude(inputs: list[torch.Tensor], op: str) -> torch.Tensor | None:
    total = sum(wide(x).abs() for x in inputs)
    return my_rows(total) if op in ("Sum", "Average") else None


@check(cases=REDUCED)
def reducescatter_uneven(dtype: torch.dtype, op: str) -> None:
    shape = (2 * md.size() + md.size() - 1, 3)
    inputs = [make(rank, dtype, shape, seed=9) for rank in range(md.size())]
    result = md.reducescatter(inputs[md.rank()], name=f"rs.{dtype}.{op}", op=REDUCE_OPS[op])
    assert result.dtype == dtype
    expect_close(result, my_rows(reduce(inputs, op)), magnitude(inputs, op))


@check()
def reducescatter_fewer_rows_than_ranks() -> None:
    inputs = [make(rank, torch.float64, (1, 4), seed=10) for rank in range(md.size())]
    result = md.synchronize(md.reducescatter_async(inputs[md.rank()], name="rs.few", op=md.Sum))
    expect_close(result, my_rows(reduce(inputs, "Sum")), magnitude(inputs, "Sum"))


@check()
def reducescatter_scales() -> None:
    inputs = [make(rank, torch.float32, (7, 2), seed=11) for rank in range(md.size())]
    result = md.reducescatter(
        inputs[md.rank()], name="rs.scale", op=md.Sum, prescale_factor=4.0, postscale_factor=0.5
    )
    wanted = my_rows(reduce(inputs, "Sum")) * 2
    expect_close(result, wanted, 4 * my_rows(sum(wide(x).abs() for x in inputs)))


@check(cases=[("fp16",), ("bf16",)])
def reducescatter_compressed(kind: str) -> None:
    compression = getattr(md.Compression, kind)
    inputs = [torch.full((5, 2), float(rank + 1)) for rank in range(md.size())]  # Exact in both.
    mine, name = inputs[md.rank()], f"rs.{kind}"
    for result in (
        md.reducescatter(mine, name, md.Sum, compression=compression),
        md.synchronize(md.reducescatter_async(mine, name, md.Sum, compression=compression)),
        md.grouped_reducescatter([mine], name, md.Sum, compression=compression)[0],
    ):
        assert result.dtype == torch.float32
        assert torch.equal(result, my_rows(sum(inputs[1:], inputs[0])))
    leaf = mine.clone().requires_grad_()
    md.reducescatter(leaf, f"{name}.g", md.Sum, compression=compression).sum().backward()
    assert leaf.grad is not None and torch.equal(leaf.grad, torch.ones(5, 2))


@check()
def grouped_reducescatter_gives_every_member() -> None:
    inputs = [
        [make(rank, torch.float32, shape, seed=12) for rank in range(md.size())]
        for shape in ((5, 2), (9,), (2, 0))
    ]
    mine = [tensors[md.rank()] for tensors in inputs]
    for results in (
        md.grouped_reducescatter(mine, name="rs.group", op=md.Sum),
        md.synchronize(md.grouped_reducescatter_async(mine, name="rs.group", op=md.Sum)),
    ):
        for tensors, result in zip(inputs, results, strict=True):
            expect_close(result, my_rows(reduce(tensors, "Sum")), magnitude(tensors, "Sum"))
