"""Ranks that disagree: an error on every rank, and the job goes on."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from soon import soon

import mydist as md
from multiproc.registry import check

Call = Callable[[str], object]


def expect_mismatch(name: str, call: Call, mentioned: list[str]) -> None:
    """`call` raises MismatchError on this rank, naming the tensor and what each rank had."""
    md.barrier()  # From here on no rank waits for one that is late.
    try:
        with soon():
            call(name)
    except md.MismatchError as error:
        text = str(error)
        assert error.failure["code"] == "MISMATCH", error.failure
        assert error.failure["tensor"].startswith(name), error.failure
        for part in [name, *mentioned]:
            assert part in text, f"'{part}' is not in: {text}"
        assert ranks_named(text) == set(range(md.size())), text
    else:
        raise AssertionError(f"no error for {name}")


def ranks_named(text: str) -> set[int]:
    """The ranks in "rank 2 (…)", "ranks 0, 1 (…)" and "ranks 0-2 (…)", one table row each."""
    found: set[int] = set()
    for row in re.findall(r"^ *ranks? ([0-9, -]+) \(host", text, re.MULTILINE):
        for part in row.split(","):
            first, _, last = part.strip().partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found


def expect_usable(name: str) -> None:
    """The name can be used again, and so can others."""
    for used in (name, f"{name}.after"):
        for _ in range(2):
            result = md.allreduce(torch.ones(3), name=used, op=md.Sum)
            assert result.tolist() == [md.size()] * 3


def odd() -> bool:
    """Whether this is the rank that differs: the last one."""
    return md.rank() == md.size() - 1


DISAGREEMENTS: dict[str, tuple[Call, list[str]]] = {
    "shape": (lambda n: md.allreduce(torch.ones(5 if odd() else 3), name=n), ["3", "5"]),
    "dtype": (
        lambda n: md.allreduce(
            torch.ones(3, dtype=torch.float64 if odd() else torch.float32), name=n
        ),
        ["float32", "float64"],
    ),
    "op": (
        lambda n: (
            md.broadcast(torch.ones(3), 0, name=n) if odd() else md.allreduce(torch.ones(3), name=n)
        ),
        ["allreduce", "broadcast"],
    ),
    "reduce op": (
        lambda n: md.allreduce(torch.ones(3), name=n, op=md.Max if odd() else md.Sum),
        ["Max", "Sum"],
    ),
    "postscale": (
        lambda n: md.allreduce(torch.ones(3), name=n, postscale_factor=0.25 if odd() else 1.0),
        ["0.25"],
    ),
    "root": (
        lambda n: md.broadcast(torch.ones(3), 1 if odd() else 0, name=n),
        ["root 0", "root 1"],
    ),
    "allgather width": (
        lambda n: md.allgather(torch.ones(2, 5 if odd() else 3), name=n),
        ["3", "5"],
    ),
    "reducescatter shape": (
        lambda n: md.reducescatter(torch.ones(8 if odd() else 6, 2), name=n),
        ["6", "8"],
    ),
}


@check(min_size=2, cases=[(kind,) for kind in DISAGREEMENTS])
def fresh_name(kind: str) -> None:
    call, mentioned = DISAGREEMENTS[kind]
    name = f"mismatch.{kind}"
    expect_mismatch(name, call, mentioned)
    expect_usable(name)


@check(min_size=2, cases=[(kind,) for kind in DISAGREEMENTS])
def cached_name(kind: str) -> None:
    call, mentioned = DISAGREEMENTS[kind]
    name = f"mismatch.cached.{kind}"
    expect_usable(name)  # puts it into the response cache
    expect_mismatch(name, call, mentioned)
    expect_usable(name)


@check(min_size=2)
def all_ranks_change_a_cached_shape() -> None:
    for length in (3, 3, 5, 5, 3):
        result = md.allreduce(torch.ones(length), name="reshaped", op=md.Sum)
        assert result.tolist() == [md.size()] * length


@check(min_size=2)
def one_bad_member_fails_the_group() -> None:
    shapes = [(2,), (4 if odd() else 3,), (5,)]
    tensors = [torch.ones(shape) for shape in shapes]
    expect_mismatch("grouped.bad", lambda n: md.grouped_allreduce_(tensors, name=n, op=md.Sum), [])
    # All or nothing: the members that agreed were not reduced either.
    assert bool((tensors[0] == 1).all()) and bool((tensors[2] == 1).all())
    results = md.grouped_allreduce([torch.ones(2)] * 3, name="grouped.bad", op=md.Sum)
    assert [r.tolist() for r in results] == [[md.size()] * 2] * 3


@check(min_size=2)
def others_in_flight_are_not_disturbed() -> None:
    good = [md.allreduce_async(torch.ones(4), name=f"good.{i}", op=md.Sum) for i in range(5)]
    expect_mismatch(
        "bad among good", lambda n: md.allreduce(torch.ones(5 if odd() else 3), name=n), []
    )
    for handle in good:
        assert md.synchronize(handle).tolist() == [md.size()] * 4
