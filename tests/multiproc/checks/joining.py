"""join: ranks that have run out of data, with every collective."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from soon import soon

import mydist as md
from multiproc.checks.process_sets import added, expect_error
from multiproc.registry import check
from mydist import _C

Work = Callable[[str, list[int]], None]


def mine() -> torch.Tensor:
    return value_of(md.rank())


def value_of(rank: int) -> torch.Tensor:
    return torch.arange(8, dtype=torch.float64).reshape(4, 2) + 10 * rank + 1


def stacked(ranks: list[int]) -> torch.Tensor:
    return torch.stack([value_of(rank) for rank in ranks])


def expect(got: torch.Tensor | None, wanted: torch.Tensor) -> None:
    assert got is not None and torch.equal(got, wanted), f"got {got}, expected {wanted}"


def allreduce(name: str, active: list[int]) -> None:
    values = stacked(active)
    wanted = {
        md.Sum: values.sum(0),
        md.Average: values.sum(0) / md.size(),
        md.Min: values.amin(0),
        md.Max: values.amax(0),
        md.Product: values.prod(0),
    }
    for op, result in wanted.items():
        expect(md.allreduce(mine(), op=op, name=f"{name}.{op}"), result)


def grouped_allreduce(name: str, active: list[int]) -> None:
    results = md.grouped_allreduce([mine(), 2 * mine()], op=md.Sum, name=name)
    expect(results[0], stacked(active).sum(0))
    expect(results[1], 2 * stacked(active).sum(0))


def integers_and_bools(name: str, active: list[int]) -> None:
    for dtype in (torch.int8, torch.uint8, torch.int64):
        tensor = torch.tensor([-3 if dtype != torch.uint8 else 3], dtype=dtype)
        for op in (md.Min, md.Max):
            result = md.allreduce(tensor, op=op, name=f"{name}.{dtype}.{op}")
            assert result.item() == tensor.item(), f"{dtype} {op}: {result}"
    true = torch.tensor([True, False])
    for op in (md.Min, md.Max, md.Sum, md.Product):
        result = md.allreduce(true, op=op, name=f"{name}.bool.{op}")
        assert result.tolist() == [True, False], f"{op}: {result}"


def halves(name: str, active: list[int]) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        tensor = torch.tensor([-2.0, 0.5], dtype=dtype)
        for op in (md.Min, md.Max):
            result = md.allreduce(tensor, op=op, name=f"{name}.{dtype}.{op}")
            assert result.tolist() == [-2.0, 0.5], f"{dtype} {op}: {result}"


def allgather(name: str, active: list[int]) -> None:
    expect(md.allgather(mine(), name=name), stacked(active).flatten(0, 1))


def grouped_allgather(name: str, active: list[int]) -> None:
    first, second = md.grouped_allgather([mine(), mine()[:1]], name=name)
    expect(first, stacked(active).flatten(0, 1))
    expect(second, stacked(active)[:, 0])


def broadcast(name: str, active: list[int]) -> None:
    for root in active:
        expect(md.broadcast(mine(), root, name=f"{name}.{root}"), value_of(root))


def alltoall(name: str, active: list[int]) -> None:
    rows = torch.arange(float(md.size())).reshape(-1, 1) + 100 * md.rank()
    output, received = md.alltoall(rows, [1] * md.size(), name=name)
    assert output.flatten().tolist() == [100.0 * rank + md.rank() for rank in active]
    assert received.tolist() == [int(rank in active) for rank in range(md.size())]


def reducescatter(name: str, active: list[int]) -> None:
    rows = torch.stack([value_of(md.rank())[0] + i for i in range(md.size())])
    piece = md.reducescatter(rows, op=md.Sum, name=name)
    expect(piece[0], (stacked(active)[:, 0] + md.rank()).sum(0))


def reduce(name: str, active: list[int]) -> None:
    root = active[-1]
    result = md.reduce(mine(), root, op=md.Sum, name=name)
    if md.rank() == root:
        expect(result, stacked(active).sum(0))


def gather(name: str, active: list[int]) -> None:
    root = active[0]
    result = md.gather(mine(), root, name=name)
    if md.rank() == root:
        expect(result, stacked(active).flatten(0, 1))


def scatter(name: str, active: list[int]) -> None:
    root = active[0]
    rows = torch.arange(float(md.size())).reshape(-1, 1)
    assert md.scatter(rows, root_rank=root, name=name).tolist() == [[float(md.rank())]]


def barrier(name: str, active: list[int]) -> None:
    md.barrier()


def objects(name: str, active: list[int]) -> None:
    assert md.allgather_object(md.rank(), name=name) == active
    assert md.broadcast_object(md.rank(), active[-1], name=f"{name}.one") == active[-1]


WORK: dict[str, Work] = {
    function.__name__: function
    for function in (
        allreduce,
        grouped_allreduce,
        integers_and_bools,
        halves,
        allgather,
        grouped_allgather,
        broadcast,
        alltoall,
        reducescatter,
        reduce,
        gather,
        scatter,
        barrier,
        objects,
    )
}


def run_with_joined(work: Work, name: str, early: list[int], warm: bool) -> None:
    """`work` by all ranks but `early`, which join at once; then the others join, rank 0 last."""
    everyone = list(range(md.size()))
    if warm:  # The names are cached when the ranks join.
        for _ in range(2):
            work(name, everyone)
    active = [rank for rank in everyone if rank not in early]
    if md.rank() in active:
        for _ in range(2):
            work(name, active)
        if md.rank() == 0:
            # Alone: all others have joined, or are about to.
            work(f"{name}.alone", [0])
    assert md.join() == 0
    assert md.allreduce(torch.ones(1), op=md.Sum, name=f"{name}.after").item() == md.size()


@check(min_size=2, cases=[(kind,) for kind in WORK])
def others_go_on_uncached(kind: str) -> None:
    run_with_joined(WORK[kind], f"join.{kind}", [md.size() - 1], warm=False)


@check(min_size=2, cases=[(kind,) for kind in WORK])
def others_go_on_cached(kind: str) -> None:
    run_with_joined(WORK[kind], f"join.cached.{kind}", list(range(1, md.size())), warm=True)


@check()
def all_at_once_and_again() -> None:
    last = [md.join() for _ in range(5)]
    assert all(0 <= rank < md.size() for rank in last)
    assert md.allgather_object(last) == [last] * md.size()


@check(min_size=2)
def the_last_one_is_told_to_all() -> None:
    for last in range(md.size()):
        if md.rank() == last:
            # Proves that the others have joined: only then does it get a result on its own.
            assert md.allreduce(torch.ones(1), op=md.Sum, name="only me").item() == 1.0
        assert md.join(device=0) == last


@check(min_size=2)
def a_joined_rank_has_nothing_to_give() -> None:
    joined = md.size() - 1
    calls: dict[str, Callable[[str], object]] = {
        "broadcast": lambda name: md.broadcast(torch.ones(2), joined, name=name),
        "scatter": lambda name: md.scatter(torch.ones(2), None, joined, name=name),
    }
    if md.rank() != joined:
        for call, function in calls.items():
            for name in (f"from joined.{call}",) * 2:
                with soon():
                    expect_error(
                        lambda f=function, n=name: f(n),  # type: ignore[misc]
                        md.MismatchError,
                        name,
                        f"rank {joined}",
                        "join",
                    )
        # What a joined root would have received is dropped.
        assert md.reduce(torch.ones(2), joined, name="to joined") is None
        assert md.gather(torch.ones(2), joined, name="to joined") is None
        assert md.allreduce(torch.ones(1), op=md.Sum).item() == md.size() - 1
    md.join()


@check(min_size=2)
def a_joined_rank_neither_sends_nor_receives() -> None:
    if md.rank() == 0:
        for name, call in {
            "to joined": lambda: md.send(torch.ones(2), 1, name="to joined"),
            "from joined": lambda: md.recv(torch.ones(2), 1, name="from joined"),
        }.items():
            expect_error(call, md.MismatchError, name, "rank 1", "join")
    md.join()


@check(min_size=2)
def a_joined_rank_may_not_go_on() -> None:
    made = tempfile.mkdtemp() if md.rank() == 0 else ""
    folder = Path(md.broadcast_object(made, 0, name="where to tell"))
    if md.rank() == 0:
        # A rank that has joined can tell nobody through mydist.
        while len(list(folder.iterdir())) < md.size() - 1:
            os.sched_yield()
        shutil.rmtree(folder)
        assert 0 <= md.join() < md.size()
        return
    handle = _C.enqueue_join()
    try:
        expect_error(
            lambda: md.allreduce(torch.ones(1), name="too late"),
            ValueError,
            "tensor 'too late' was submitted after join()",
            "Wait until join() returns on this rank",
        )
        expect_error(md.join, ValueError, "join() is already in progress on this rank")
    finally:
        (folder / str(md.rank())).touch()
    assert 0 <= int(_C.wait(handle)[0]) < md.size()


@check(min_size=3)
def sets_go_on_without_their_joined_ranks() -> None:
    size = md.size()
    with added(list(range(1, size))) as (rest,):
        if md.rank() == 1:
            for _ in range(3):
                total = md.allreduce(torch.ones(2), op=md.Sum, name="set", process_set=rest)
                # The others join meanwhile, one after the other.
                assert 1.0 <= total[0].item() <= size - 1
            value = torch.tensor([5.0])
            while md.allreduce(value, op=md.Sum, name="until alone", process_set=rest) != 5.0:
                pass
        elif md.rank() > 1:
            md.allreduce(torch.ones(2), op=md.Sum, name="set", process_set=rest)
        last = md.join()
        assert md.allgather_object(last) == [last] * size


@check(min_size=2)
def sets_do_not_change_without_their_ranks() -> None:
    if md.rank() != 1:
        expect_error(
            lambda: md.add_process_set([0]), md.MismatchError, "add_process_set", "rank 1", "join"
        )
    md.join()
    with added([0]) as (process_set,):
        assert process_set.ranks == [0]


@check()
def bad_devices_are_refused() -> None:
    expect_error(lambda: md.join(-2), ValueError, "join: device is -2, expected -1 or the index")
    expect_error(lambda: md.join(2**40), ValueError, "join: device is 1099511627776")
    expect_error(lambda: md.join(True), TypeError, "join: device is True (bool), expected an int")
    expect_error(
        lambda: md.join("cpu"),  # type: ignore[arg-type]
        TypeError,
        "join: device is 'cpu' (str), expected an int",
    )
