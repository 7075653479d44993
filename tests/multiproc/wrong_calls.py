"""Calls at the border of what is allowed, as checks: sizes, dtypes, roots and memory.

Each is an error of the same kind on all ranks, and the group is usable afterwards; or it works.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from multiproc.group_checks import new_checks, rank, size

WRONG_CALLS, check = new_checks()


def is_last() -> bool:
    return rank() == size() - 1


def expect_error(kind: type[Exception], text: str, call: Callable[[], object]) -> None:
    try:
        call()
    except kind as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"no {kind.__name__} with '{text}'")
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert bool((tensor == size()).all())


def backend_of(group: Any = None) -> Any:
    return (group or dist.group.WORLD)._get_backend(torch.device("cpu"))


def all_reduce_coalesced(tensors: list[torch.Tensor]) -> None:
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)


@check
def sizes_that_do_not_fit() -> None:
    if size() == 1:
        return
    text = "a rank sends other sizes than its peer receives"
    own = torch.zeros(size() * (2 if is_last() else 1))
    expect_error(dist.DistBackendError, text, lambda: dist.all_to_all_single(own.clone(), own))
    rows = [torch.zeros(2) for _ in range(size())] if rank() == 0 else None
    own = torch.zeros(3 if is_last() else 2)
    expect_error(dist.DistBackendError, text, lambda: dist.gather(own, rows, 0))
    expect_error(dist.DistBackendError, text, lambda: dist.scatter(own, rows, 0))


@check
def equal_sums_of_unequal_sizes() -> None:
    if size() == 1:
        return
    text = "its ranks call different operations"
    counts = [3, 4] if is_last() else [4, 3]
    tensors = [torch.zeros(count) for count in counts]
    expect_error(dist.DistBackendError, text, lambda: all_reduce_coalesced(tensors))
    counts = [2] * size()
    counts[rank()] = 5
    rows = [torch.zeros(count) for count in counts]
    expect_error(dist.DistBackendError, text, lambda: dist.all_gather(rows, torch.zeros(5)))
    expect_error(dist.DistBackendError, text, lambda: dist.reduce_scatter(torch.zeros(5), rows))


@check
def dtypes_that_differ() -> None:
    wide = torch.zeros(2 * size(), dtype=torch.int32)
    expect_error(
        ValueError,
        "all_gather of float32 got an output of int32",
        lambda: dist.all_gather_single(wide, torch.zeros(2)),
    )
    if size() > 1:
        tensor = torch.zeros(4, dtype=torch.int32 if is_last() else torch.float32)
        expect_error(
            dist.DistBackendError,
            "broadcast of 4 int32, root 0",
            lambda: dist.broadcast(tensor, 0),
        )


@check
def roots_outside_the_group() -> None:
    for call in (
        lambda: dist.broadcast(torch.zeros(1), group_src=size()),
        lambda: dist.reduce(torch.zeros(1), group_dst=size()),
        lambda: dist.gather(torch.zeros(1), group_dst=size()),
        lambda: dist.scatter(torch.zeros(1), group_src=size()),
    ):
        expect_error(ValueError, f"got root {size()}", call)


@check
def all_to_all_in_place() -> None:
    tensor = torch.arange(float(size())) + 10 * rank()
    dist.all_to_all_single(tensor, tensor)
    assert tensor.tolist() == [10.0 * other + rank() for other in range(size())]


@check
def results_whose_elements_share_memory() -> None:
    for call in (
        lambda: dist.all_reduce(torch.ones(1).expand(4)),
        lambda: dist.broadcast(torch.ones(1).expand(4), 0),
        lambda: dist.recv(torch.ones(1).expand(4), (rank() + 1) % size()),
    ):
        if size() > 1:
            expect_error(ValueError, "several elements share memory", call)


@check
def operations_and_roots_that_differ() -> None:
    if size() == 1:
        return
    text = "its ranks call different operations"
    op = dist.ReduceOp.MAX if is_last() else dist.ReduceOp.SUM
    expect_error(dist.DistBackendError, text, lambda: dist.all_reduce(torch.zeros(2), op))
    root = 1 if is_last() else 0
    expect_error(dist.DistBackendError, text, lambda: dist.broadcast(torch.zeros(2), root))
    call = dist.barrier if is_last() else lambda: dist.all_reduce(torch.zeros(2))
    expect_error(dist.DistBackendError, text, call)


# Of torch, and not of mydist: they only move.
MOVED_ONLY = (
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
)


def move_everywhere(own: torch.Tensor, of: list[torch.Tensor]) -> None:
    """Each call that only moves data; `of`: what all ranks have."""

    def same(got: torch.Tensor, expected: torch.Tensor) -> bool:
        return torch.equal(got.view(torch.uint8), expected.view(torch.uint8))

    tensor = own.clone()
    dist.broadcast(tensor, 0)
    assert same(tensor, of[0])
    rows = [torch.zeros_like(own) for _ in of]
    dist.all_gather(rows, own)
    assert all(map(same, rows, of))
    rows = [torch.zeros_like(own) for _ in of]
    dist.gather(own, rows if rank() == 0 else None, 0)
    assert rank() > 0 or all(map(same, rows, of))
    tensor = torch.zeros_like(own)
    dist.scatter(tensor, of if rank() == 0 else None, 0)
    assert same(tensor, own)
    rows = [torch.zeros_like(own) for _ in of]
    dist.all_to_all(rows, [own] * size())
    assert all(map(same, rows, of))
    if size() > 1:
        sent = dist.isend(own, (rank() + 1) % size())
        dist.recv(tensor, (rank() - 1) % size())
        sent.wait()
        assert same(tensor, of[(rank() - 1) % size()])


@check
def dtypes_that_only_move() -> None:
    for dtype in MOVED_ONLY:
        of = [torch.tensor([1, 2, 3 + other]).to(dtype) for other in range(size())]
        own = of[rank()]
        move_everywhere(own, of)
        text = f"cannot reduce {str(dtype).removeprefix('torch.')}"
        expect_error(ValueError, text, partial(dist.all_reduce, own))
        expect_error(ValueError, text, partial(dist.reduce, own, 0))
        rows = [own] * size()
        expect_error(ValueError, text, partial(dist.reduce_scatter, own.clone(), rows))


@check
def tensors_without_elements() -> None:
    empty = torch.empty(0, 3)
    move_everywhere(empty, [empty] * size())
    dist.all_reduce(empty)
    dist.reduce(empty, 0)
    dist.reduce_scatter(empty, [empty] * size())
    dist.all_gather_single(torch.empty(0), torch.empty(0))
    dist.reduce_scatter_single(torch.empty(0), torch.empty(0))
    dist.all_to_all_single(empty, empty)
    none: list[torch.Tensor] = []
    backend_of().allreduce_coalesced(none).wait()
    with dist._coalescing_manager():
        pass


@check
def bools_and_complex_numbers() -> None:
    own = torch.tensor([rank() == 0, True, False])
    for op, expected in (
        (dist.ReduceOp.MAX, [True, True, False]),
        (dist.ReduceOp.BOR, [True, True, False]),
        (dist.ReduceOp.MIN, [size() == 1, True, False]),
        (dist.ReduceOp.PRODUCT, [size() == 1, True, False]),
        (dist.ReduceOp.BAND, [size() == 1, True, False]),
        (dist.ReduceOp.BXOR, [True, size() % 2 == 1, False]),
    ):
        flags = own.clone()
        dist.all_reduce(flags, op)
        assert flags.tolist() == expected, (op, flags)
    of = [torch.tensor([1 + 2j, other * 1j]) for other in range(size())]
    move_everywhere(of[rank()], of)
    total = torch.empty(1, dtype=torch.complex64)
    dist.reduce_scatter(total, [torch.full((1,), 1j * (rank() + 1))] * size())
    assert total.item() == 1j * size() * (size() + 1) / 2
    for dtype in (torch.bool, torch.int32, torch.uint8):
        tensor = torch.ones(2).to(dtype)
        for op, name in (
            (dist.ReduceOp.AVG, "AVG"),
            (dist._make_nccl_premul_sum(0.5), "PREMUL_SUM"),
        ):
            expect_error(ValueError, name, partial(dist.all_reduce, tensor, op))


@check
def peers_that_are_none() -> None:
    tensor = torch.ones(1)
    for peer in (rank(), size(), -1):
        text = f"got rank {peer} of the group, expected another rank below {size()}"
        for call in (backend_of().send, backend_of().recv):
            expect_error(ValueError, text, partial(call, [tensor], peer, 0))


@check
def splits_that_do_not_fit() -> None:
    own = torch.zeros(2 * size())
    wrong = [2] * (size() - 1) + [3]
    for inputs, outputs in ((wrong, None), (None, wrong)):
        expect_error(
            RuntimeError,
            "split_sizes to sum exactly to",
            partial(dist.all_to_all_single, own.clone(), own, outputs, inputs),
        )
    expect_error(
        ValueError,
        f"got {size() + 1} inputs and {size()} outputs",
        lambda: dist.all_to_all_single(own.clone(), own, None, [0, *wrong[:-1], 2]),
    )


@check
def tensors_of_another_device() -> None:
    own, other = torch.zeros(2), torch.zeros(2, device="meta")
    text = "got a tensor on meta of layout Strided, expected a dense one on the CPU"
    for call in (
        lambda: backend_of().allgather([[own] * (size() - 1) + [other]], [own]),
        lambda: backend_of().allgather([[own] * size()], [other]),
        lambda: backend_of().alltoall([own] * size(), [own] * (size() - 1) + [other]),
        lambda: backend_of().allreduce_coalesced([own, other]),
    ):
        expect_error(ValueError, text, call)


@check
def calls_after_the_end_of_a_group() -> None:
    group = dist.new_group()
    name, backend = group.group_name, backend_of(group)
    dist.all_reduce(torch.ones(1), group=group)
    dist.destroy_process_group(group)
    for call in (
        lambda: backend.allreduce([torch.ones(1)]).wait(),
        lambda: backend.barrier().wait(),
        lambda: backend.monitored_barrier(timedelta(seconds=20)),
        lambda: backend.send([torch.ones(1)], (rank() + 1) % size(), 0).wait(),
        lambda: backend.recv([torch.ones(1)], (rank() + 1) % size(), 0).wait(),
    ):
        if size() > 1:
            expect_error(dist.DistBackendError, f"group '{name}' was destroyed", call)


def threads_of_lanes() -> list[str]:
    names = []
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as comm:
            names.append(comm.read().strip())
    return sorted(name for name in names if name in ("mydist-lane", "mydist-posts"))


@check
def a_group_of_one_has_no_thread() -> None:
    alone = [dist.new_group([other]) for other in range(size())][rank()]
    before = threads_of_lanes()
    tensor = torch.ones(3)
    work = dist.all_reduce(tensor, group=alone, async_op=True)
    assert work.is_completed() and work.get_future().wait()[0] is not None
    dist.barrier(group=alone)
    rows = [torch.zeros(3)]
    dist.all_gather(rows, tensor, group=alone)
    assert rows[0].tolist() == [1, 1, 1]
    backend_of(alone).monitored_barrier(timedelta(seconds=20))
    assert threads_of_lanes() == before
