"""Calls that ranks make with sizes, dtypes, roots or memory that do not fit, as checks.

Each is an error of the same kind on all ranks, and the group is usable afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist

WRONG_CALLS: list[Callable[[], None]] = []


def check(function: Callable[[], None]) -> Callable[[], None]:
    WRONG_CALLS.append(function)
    return function


def rank() -> int:
    return dist.get_rank()


def size() -> int:
    return dist.get_world_size()


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


def all_reduce_coalesced(tensors: list[torch.Tensor]) -> None:
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)


@check
def sizes_that_do_not_fit() -> None:
    if size() == 1:
        return
    text = "one rank sends other sizes than another rank receives"
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
