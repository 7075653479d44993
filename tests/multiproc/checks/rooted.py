"""reduce, gather and scatter: odd shapes, asynchronous forms, ranks that disagree, wrong use."""

from __future__ import annotations

from collections.abc import Callable

import torch

import mydist as md
from multiproc.checks.process_sets import expect_error
from multiproc.reference import FLOAT8, expect_equal, make
from multiproc.registry import check

Call = Callable[[str], object]


@check(cases=[((),), ((0,),), ((1,),), ((3, 0),)])
def odd_shapes(shape: tuple[int, ...]) -> None:
    root = md.size() - 1
    mine = make(md.rank(), torch.float32, shape)
    inputs = [make(rank, torch.float32, shape) for rank in range(md.size())]
    reduced = md.reduce(mine, root, op=md.Max, name=f"reduce.{shape}")
    gathered = md.gather(mine, root, name=f"gather.{shape}")
    if md.rank() == root:
        assert reduced is not None and gathered is not None
        expect_equal(reduced, torch.stack(inputs).amax(0))
        expect_equal(gathered, torch.cat([tensor.reshape(shape or (1,)) for tensor in inputs]))
    else:
        assert reduced is None and gathered is None


@check(cases=[(dtype,) for dtype in FLOAT8])
def floats_of_eight_bits_only_travel(dtype: torch.dtype) -> None:
    inputs = [make(rank, dtype, (md.size(), 3)) for rank in range(md.size())]
    mine = inputs[md.rank()]
    gathered = md.gather(mine, 0, name=f"gather.{dtype}")
    if md.rank() == 0:
        assert gathered is not None
        expect_equal(gathered, torch.cat(inputs))
    expect_equal(md.scatter(mine, name=f"scatter.{dtype}"), inputs[0][md.rank()].unsqueeze(0))
    expect_error(lambda: md.reduce(mine, 0, name="sum"), ValueError, "reduce of 'sum'", "bfloat16")


@check()
def inputs_that_are_not_contiguous() -> None:
    whole = [make(rank, torch.float64, (6, 4)) for rank in range(md.size())]
    view = whole[md.rank()].t()[::2]
    views = [tensor.t()[::2] for tensor in whole]
    gathered = md.gather(view, 0, name="views.gather")
    piece = md.scatter(view, [2] + [0] * (md.size() - 1), 0, name="views.scatter")
    if md.rank() == 0:
        assert gathered is not None
        expect_equal(gathered, torch.cat(views))
        expect_equal(piece, views[0].contiguous())
    expect_equal(view, views[md.rank()])


@check()
def fewer_rows_than_ranks() -> None:
    rows = torch.arange(1.0).reshape(1, 1)
    piece = md.scatter(rows if md.rank() == 0 else torch.empty(5, 1), name="one row")
    assert piece.shape == ((1, 1) if md.rank() == 0 else (0, 1))


@check()
def splits_matter_on_the_root_only() -> None:
    size = md.size()
    splits = torch.tensor([2] * size) if md.rank() == 0 else [99]
    piece = md.scatter(torch.arange(2.0 * size), splits, name="splits of the root")
    assert piece.tolist() == [2.0 * md.rank(), 2.0 * md.rank() + 1]


@check()
def asynchronous_in_any_order() -> None:
    order = list(range(6)) if md.rank() % 2 else list(range(5, -1, -1))
    size = md.size()
    handles: dict[tuple[str, int], int] = {}
    for i in order:
        value, root = torch.tensor([float(10 * md.rank() + i)]), i % size
        handles["reduce", i] = md.reduce_async(value, root, op=md.Sum, name=f"async.reduce.{i}")
        handles["gather", i] = md.gather_async(value, root, name=f"async.gather.{i}")
        handles["scatter", i] = md.scatter_async(
            torch.arange(float(size)) + i, root_rank=root, name=f"async.scatter.{i}"
        )
    for i in range(6):
        values = [10.0 * rank + i for rank in range(size)]
        at_root = md.rank() == i % size
        reduced = md.synchronize(handles["reduce", i])
        gathered = md.synchronize(handles["gather", i])
        assert (reduced.item() == sum(values)) if at_root else reduced is None
        assert (gathered.tolist() == values) if at_root else gathered is None
        assert md.synchronize(handles["scatter", i]).tolist() == [float(md.rank() + i)]


@check()
def unnamed_calls_and_factors() -> None:
    for _ in range(3):
        reduced = md.reduce(
            torch.ones(2), 0, average=True, prescale_factor=3.0, postscale_factor=0.5
        )
        assert reduced is None if md.rank() else reduced.tolist() == [1.5, 1.5]
        md.gather(torch.ones(1))
        assert md.scatter(torch.ones(md.size())).item() == 1.0


@check()
def wrong_splits_are_refused_on_the_root() -> None:
    size = md.size()
    if md.rank() != 0:
        return
    rows = torch.ones(4, 2)
    first = [0] * (size - 1)
    cases: list[tuple[list[int], str]] = [
        ([4] + [0] * size, f"splits has {size + 1} entries, expected one for each of the {size}"),
        ([*first, 3], "splits sum to 3, expected the first dimension 4"),
        ([*first, -4], f"splits[{size - 1}] is -4, expected 0 to the first dimension 4"),
    ]
    for splits, text in cases:
        expect_error(
            lambda s=splits: md.scatter(rows, s, name="cut"),  # type: ignore[misc]
            ValueError,
            f"scatter of 'cut': {text}",
        )
