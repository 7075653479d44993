"""allreduce and grouped_allreduce against a float64 or exact reference."""

from __future__ import annotations

from typing import Any

import torch

import mydist as md
from multiproc.checks.ops import REDUCE_OPS
from multiproc.reference import (
    DTYPES,
    FLOATS,
    INTEGERS,
    expect_close,
    expect_equal,
    has_meaning,
    make,
    raw,
    reduce,
    wide,
)
from multiproc.registry import check

MEANINGFUL = [(dtype, op) for dtype in DTYPES for op in REDUCE_OPS if has_meaning(op, dtype)]


def inputs_of_all(
    dtype: torch.dtype, shape: tuple[int, ...] = (33, 7), seed: int = 0
) -> list[torch.Tensor]:
    return [make(rank, dtype, shape, seed) for rank in range(md.size())]


def magnitude(inputs: list[torch.Tensor], op: str) -> torch.Tensor | None:
    """How large the terms of a sum are, which its rounding error is relative to."""
    if op not in ("Sum", "Average") or inputs[0].dtype == torch.bool:
        return None
    return sum(wide(x).abs() for x in inputs)


def expect_same_bits(tensor: torch.Tensor) -> None:
    """The result is bitwise the same on all ranks."""
    everyone = md.allgather_object(raw(tensor))
    different = [rank for rank, data in enumerate(everyone) if data != everyone[0]]
    assert not different, f"ranks {different} have other bits than rank 0"


@check(cases=MEANINGFUL)
def matches_reference(dtype: torch.dtype, op: str) -> None:
    inputs = inputs_of_all(dtype)
    mine = inputs[md.rank()]
    before = mine.clone()
    result = md.allreduce(mine, name=f"ref.{dtype}.{op}", op=REDUCE_OPS[op])
    assert result.dtype == dtype
    expect_close(result, reduce(inputs, op), magnitude(inputs, op))
    expect_equal(mine, before)
    expect_same_bits(result)


@check(cases=[(dtype,) for dtype in DTYPES if dtype != torch.bool])
def in_place_returns_the_tensor(dtype: torch.dtype) -> None:
    inputs = inputs_of_all(dtype, seed=1)
    mine = inputs[md.rank()].clone()
    result = md.allreduce_(mine, op=md.Sum, name=f"inplace.{dtype}")
    assert result is mine
    expect_close(mine, reduce(inputs, "Sum"), magnitude(inputs, "Sum"))


@check(cases=[(dtype,) for dtype in (*FLOATS, *INTEGERS)])
def scales(dtype: torch.dtype) -> None:
    inputs = inputs_of_all(dtype, seed=2)
    result = md.allreduce(
        inputs[md.rank()],
        op=md.Sum,
        name=f"scale.{dtype}",
        prescale_factor=2.0,
        postscale_factor=0.5,
    )
    # Powers of two, so that scaling adds no rounding of its own.
    wanted = reduce([wide(x) * 2 for x in inputs], "Sum")
    wanted = torch.div(wanted, 2, rounding_mode="trunc") if dtype in INTEGERS else wanted / 2
    expect_close(result, wanted, magnitude(inputs, "Sum"))


@check()
def integer_scaling_truncates() -> None:
    n = md.size()
    mine = torch.tensor([7, -7, 3, -1], dtype=torch.int32)
    result = md.allreduce(mine, op=md.Sum, name="truncate", postscale_factor=0.5)
    wanted = torch.tensor([int(v * n / 2) for v in (7, -7, 3, -1)], dtype=torch.int32)
    expect_equal(result, wanted)


@check(cases=[(torch.float16,), (torch.bfloat16,)])
def half_sums_are_rounded_once(dtype: torch.dtype) -> None:
    # In the type itself 2048 + 1 is 2048 (float16) and 256 + 1 is 256 (bfloat16).
    big = 2048.0 if dtype == torch.float16 else 256.0
    mine = torch.tensor([big if md.rank() == 0 else 1.0], dtype=dtype)
    result = md.allreduce(mine, op=md.Sum, name=f"once.{dtype}")
    wanted = torch.tensor([big + md.size() - 1], dtype=torch.float64).to(dtype)
    expect_equal(result, wanted)


@check(min_size=2, cases=[(torch.float16,), (torch.float32,)])
def sums_that_overflow_are_counted(dtype: torch.dtype) -> None:
    def overflows(op: Any) -> tuple[float, int]:
        before = md.stats()["overflows"]
        big = torch.full((100,), 0.9 * torch.finfo(dtype).max, dtype=dtype)
        result = md.allreduce(big, op=op, name=f"big.{dtype}")
        assert bool((result == result[0]).all())
        found = torch.tensor([md.stats()["overflows"] - before])  # Of the part of this rank.
        return result[0].item(), int(md.allreduce(found, op=md.Sum, name="found").item())

    value, found = overflows(md.Sum)
    assert value == float("inf") and found > 0, (value, found)
    if dtype == torch.float16:
        value, found = overflows(md.Average)
        assert value < float("inf") and found == 0, (value, found)


@check(cases=[("transposed",), ("strided",), ("expanded",), ("channels_last",), ("offset",)])
def layouts(kind: str) -> None:
    def view(rank: int) -> torch.Tensor:
        base = make(rank, torch.float32, (2, 4, 6, 8), seed=3)
        return {
            "transposed": lambda: base.transpose(1, 3),
            "strided": lambda: base[:, ::2, 1::3],
            "expanded": lambda: base[:1].expand(3, 4, 6, 8),
            "channels_last": lambda: base.contiguous(memory_format=torch.channels_last),
            "offset": lambda: base.flatten()[3:50],
        }[kind]()

    inputs = [view(rank) for rank in range(md.size())]
    wanted = reduce(inputs, "Average")
    result = md.allreduce(inputs[md.rank()], name=f"layout.{kind}")
    expect_close(result, wanted, magnitude(inputs, "Average"))
    if kind != "expanded":
        in_place = inputs[md.rank()]
        md.allreduce_(in_place, name=f"layout.inplace.{kind}")
        expect_equal(in_place.contiguous(), result.contiguous())


@check()
def in_place_on_a_view_leaves_the_rest() -> None:
    base = torch.full((4, 6), float(md.rank()))
    md.allreduce_(base[:, 1::2], op=md.Sum, name="view")
    total = sum(range(md.size()))
    assert bool((base[:, 1::2] == total).all())
    assert bool((base[:, ::2] == md.rank()).all())


@check(cases=[((),), ((0,),), ((3, 0, 2),), ((1,),)])
def odd_shapes(shape: tuple[int, ...]) -> None:
    inputs = inputs_of_all(torch.float64, shape, seed=4)
    result = md.allreduce(inputs[md.rank()], name=f"shape.{shape}")
    expect_close(result, reduce(inputs, "Average"), magnitude(inputs, "Average"))


@check()
def many_in_flight_are_all_right() -> None:
    shapes = [(1 + 37 * i % 501,) for i in range(100)]
    inputs = [inputs_of_all(FLOATS[i % 4], shape, seed=i) for i, shape in enumerate(shapes)]
    handles = [
        md.allreduce_async(tensors[md.rank()], name=f"many.{i}", op=md.Sum)
        for i, tensors in enumerate(inputs)
    ]
    for tensors, handle in zip(inputs, handles, strict=True):
        expect_close(md.synchronize(handle), reduce(tensors, "Sum"), magnitude(tensors, "Sum"))


@check()
def any_order_of_submission_works() -> None:
    count = 40
    order = torch.randperm(count, generator=torch.Generator().manual_seed(md.rank())).tolist()
    for repeat in range(3):  # first negotiated, then from the cache
        handles = {
            i: md.allreduce_async(torch.full((5,), float(i)), name=f"order.{i}", op=md.Sum)
            for i in order
        }
        for i, handle in handles.items():
            expect_equal(md.synchronize(handle), torch.full((5,), float(i * md.size())))
        assert repeat < 3


@check()
def unnamed_calls_match_by_order() -> None:
    for value in range(4):
        result = md.allreduce(torch.tensor([float(value)]), op=md.Sum)
        expect_equal(result, torch.tensor([float(value * md.size())]))


@check()
def average_argument_as_in_horovod() -> None:
    mine = torch.tensor([float(md.rank())])
    total = sum(range(md.size()))
    expect_equal(md.allreduce(mine, False, "avg.no"), torch.tensor([float(total)]))
    expect_equal(md.allreduce(mine, True, "avg.yes"), torch.tensor([total / md.size()]))
    try:
        md.allreduce(mine, average=True, op=md.Sum)
    except ValueError:
        pass
    else:
        raise AssertionError("average= and op= together were accepted")


@check()
def grouped_gives_every_member() -> None:
    shapes = [(3,), (2, 5), (), (0,), (1000,)]
    inputs = [inputs_of_all(torch.float32, shape, seed=50 + i) for i, shape in enumerate(shapes)]
    mine = [tensors[md.rank()] for tensors in inputs]
    for results in (
        md.grouped_allreduce(mine, name="grouped", op=md.Sum),
        md.synchronize(md.grouped_allreduce_async(mine, name="grouped", op=md.Sum)),
        md.grouped_allreduce_([x.clone() for x in mine], name="grouped_", op=md.Sum),
    ):
        assert len(results) == len(shapes)
        for tensors, result in zip(inputs, results, strict=True):
            expect_close(result, reduce(tensors, "Sum"), magnitude(tensors, "Sum"))


@check(cases=[("fp16",), ("bf16",)])
def compression_keeps_the_dtype(kind: str) -> None:
    inputs = inputs_of_all(torch.float32, seed=6)
    compression = getattr(md.Compression, kind)
    result = md.allreduce(inputs[md.rank()], name=f"comp.{kind}", compression=compression)
    assert result.dtype == torch.float32
    wire = torch.float16 if kind == "fp16" else torch.bfloat16
    wanted = reduce([x.to(wire) for x in inputs], "Average")
    expect_close(result.to(wire), wanted, magnitude(inputs, "Average"))


@check(cases=[("fp16",), ("bf16",)])
def compression_in_every_form(kind: str) -> None:
    compression = getattr(md.Compression, kind)
    wire = torch.float16 if kind == "fp16" else torch.bfloat16
    mine = inputs_of_all(torch.float32, (6, 50), seed=6)[md.rank()]
    kept = mine.clone()
    wanted = md.allreduce(mine.to(wire), name=f"comp.{kind}").float()

    def places() -> list[torch.Tensor]:
        """To be reduced in place: one that is contiguous, and one that is not."""
        return [mine.clone(), mine.t().contiguous().t()]

    alone, strided = places()
    waited, late_strided = places()
    both, late = places(), places()
    arguments: dict[str, Any] = {"name": f"comp.{kind}", "compression": compression}
    packed = md.stats()["pack_bytes"]
    results = [
        md.allreduce(mine, **arguments),
        md.synchronize(md.allreduce_async(mine, **arguments)),
        md.allreduce_(alone, **arguments),
        md.allreduce_(strided, **arguments),
        md.synchronize(md.allreduce_async_(waited, **arguments)),
        md.synchronize(md.allreduce_async_(late_strided, **arguments)),
        *md.grouped_allreduce([mine, mine], **arguments),
        *md.synchronize(md.grouped_allreduce_async([mine, mine], **arguments)),
        *md.grouped_allreduce_(both, **arguments),
        *md.synchronize(md.grouped_allreduce_async_(late, **arguments)),
    ]
    # The core has cast all of them: 6 calls of one tensor and 4 of two.
    md.barrier()
    assert md.stats()["pack_bytes"] - packed == 14 * 2 * mine.numel()
    for result in results + [alone, strided, waited, late_strided, *both, *late]:
        assert result.dtype == torch.float32
        assert torch.equal(result, wanted)
    assert torch.equal(mine, kept)
    # What only Python casts, in one group with what travels as it is.
    wide, whole = md.grouped_allreduce([mine.double(), torch.ones(3, dtype=wire)], **arguments)
    assert wide.dtype == torch.float64 and torch.equal(wide, wanted.double())
    assert whole.dtype == wire and set(whole.tolist()) == {1.0}


@check()
def large_tensor() -> None:
    inputs = inputs_of_all(torch.float32, (1_000_001,), seed=7)
    result = md.allreduce(inputs[md.rank()], name="large", op=md.Sum)
    expect_close(result, reduce(inputs, "Sum"), magnitude(inputs, "Sum"))
    expect_same_bits(result)
