"""broadcast and barrier."""

from __future__ import annotations

import torch

import mydist as md
from multiproc.reference import MOVED, expect_equal, make
from multiproc.registry import check


@check(cases=[(dtype,) for dtype in MOVED])
def from_every_root(dtype: torch.dtype) -> None:
    for root in range(md.size()):
        mine = make(md.rank(), dtype, (5, 3), seed=root)
        before = mine.clone()
        result = md.broadcast(mine, root, name=f"bc.{dtype}.{root}")
        expect_equal(result, make(root, dtype, (5, 3), seed=root))
        expect_equal(mine, before)


@check(cases=[((),), ((0,),), ((2, 0),), ((1,),)])
def odd_shapes(shape: tuple[int, ...]) -> None:
    root = md.size() - 1
    result = md.broadcast(make(md.rank(), torch.float32, shape), root, name=f"bc.shape.{shape}")
    expect_equal(result, make(root, torch.float32, shape))


@check()
def in_place_and_on_a_view() -> None:
    mine = make(md.rank(), torch.float32, (6, 4))
    assert md.broadcast_(mine, 0, name="bc.inplace") is mine
    expect_equal(mine, make(0, torch.float32, (6, 4)))
    view = make(md.rank(), torch.float32, (6, 4), seed=1)
    expected = view.clone()
    expected[:, ::2] = make(0, torch.float32, (6, 4), seed=1)[:, ::2]
    md.broadcast_(view[:, ::2], 0, name="bc.view")
    expect_equal(view, expected)


@check()
def asynchronous_in_any_order() -> None:
    order = list(range(10)) if md.rank() % 2 else list(range(9, -1, -1))
    handles = {
        i: md.broadcast_async(
            torch.full((3,), float(md.rank() * 100 + i)), i % md.size(), name=f"bc.async.{i}"
        )
        for i in order
    }
    for i, handle in handles.items():
        expect_equal(md.synchronize(handle), torch.full((3,), float(i % md.size() * 100 + i)))
    mine = torch.tensor([md.rank()])
    handle = md.broadcast_async_(mine, md.size() - 1, name="bc.async_")
    assert md.synchronize(handle) is mine
    assert mine.item() == md.size() - 1


@check()
def barrier_waits_for_everyone() -> None:
    seen = md.allgather(torch.tensor([md.rank()]), name="barrier.before")
    for _ in range(5):
        md.barrier()
    assert seen.tolist() == list(range(md.size()))
