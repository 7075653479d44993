"""Process sets: numbers, membership, every collective on overlapping sets, nobody waits."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

import mydist as md
from multiproc.every_collective import run_all
from multiproc.reference import COMPLEX, DTYPES
from multiproc.registry import check


@contextmanager
def added(*lists: list[int]) -> Iterator[list[md.ProcessSet]]:
    """Sets of these ranks, removed again afterwards."""
    sets = [md.add_process_set(ranks) for ranks in lists]
    yield sets
    for process_set in sets:
        md.remove_process_set(process_set)
    md.barrier()  # A rank that leaves the job early would fail what the others still do.


def overlapping() -> list[list[int]]:
    """Sets that share ranks as far as the size of the job allows."""
    size = md.size()
    if size == 2:
        return [[0], [1]]
    return [list(range(size - 1)), list(range(1, size)), [0, size - 1]]


def expect_error(call: Callable[[], object], error: type[Exception], *parts: str) -> None:
    """`call` raises exactly this type, with all parts in the text."""
    try:
        call()
    except Exception as raised:
        assert type(raised) is error, f"{type(raised).__name__}: {raised}"
        for part in parts:
            assert part in str(raised), f"'{part}' is not in: {raised}"
    else:
        raise AssertionError(f"no {error.__name__}")


def everywhere(value: object) -> list[object]:
    return md.allgather_object(value)


@check(cases=[(dtype,) for dtype in DTYPES])
def every_collective_of_the_job(dtype: torch.dtype) -> None:
    run_all(md.global_process_set, dtype, "job")


@check(
    min_size=2,
    cases=[(dtype,) for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool)]
    + [(COMPLEX[0],)],
)
def every_collective_on_overlapping_sets(dtype: torch.dtype) -> None:
    with added(*overlapping()) as sets:
        for i, process_set in enumerate(sets):
            if process_set.included():
                # The same names in all sets: each set has its own.
                run_all(process_set, dtype, f"overlap{i}" if i == 0 else "overlap")


@check(min_size=2)
def numbers_are_equal_on_all_ranks() -> None:
    with added(*overlapping()) as sets:
        numbers = [process_set.process_set_id for process_set in sets]
        assert everywhere(numbers) == [numbers] * md.size()
        assert len(set(numbers)) == len(numbers)
        assert md.global_process_set.process_set_id == 0 and 0 not in numbers


@check(min_size=2)
def a_set_knows_its_ranks() -> None:
    last = md.size() - 1
    with added([last]) as (only_last,):
        assert only_last.ranks == [last]
        assert only_last.size() == 1
        assert only_last.included() is (md.rank() == last)
        assert repr(only_last) == (
            f"ProcessSet(process_set_id={only_last.process_set_id}, ranks=[{last}])"
        )
        assert copy.deepcopy(only_last) is only_last
        if only_last.included():
            assert only_last.rank() == 0
        else:
            expect_error(only_last.rank, ValueError, f"rank {md.rank()} is not in ProcessSet")
    assert md.global_process_set.ranks == list(range(md.size()))
    assert md.global_process_set.rank() == md.rank()
    assert pickle.loads(pickle.dumps(md.global_process_set)) is md.global_process_set


@check(min_size=3)
def ranks_in_any_order() -> None:
    with added([2, 0]) as (process_set,):
        assert process_set.ranks == [0, 2]
        if process_set.included():
            gathered = md.allgather(torch.tensor([md.rank()]), process_set=process_set)
            assert gathered.tolist() == [0, 2]


@check(min_size=2)
def removed_and_added_again() -> None:
    kept = md.ProcessSet([0])
    for _ in range(5):
        assert md.add_process_set(kept) is kept
        if kept.included():
            assert md.allreduce(torch.ones(2), op=md.Sum, process_set=kept).tolist() == [1, 1]
        md.remove_process_set(kept)
        expect_error(lambda: kept.process_set_id, ValueError, "ProcessSet([0]) is not part of the")
        expect_error(
            lambda: md.allreduce(torch.ones(1), process_set=kept),
            ValueError,
            "allreduce: ProcessSet([0]) is not part of the job; add it first",
        )
    numbers = everywhere(md.add_process_set(kept).process_set_id)
    assert len(set(map(str, numbers))) == 1
    md.remove_process_set(kept)


@check(min_size=2)
def unnamed_calls_match_after_other_sets_made_theirs() -> None:
    with added([0], list(range(1, md.size()))) as (first, rest):
        for _ in range(3 if first.included() else 1):
            md.allreduce(torch.ones(1), process_set=first if first.included() else rest)
        total = md.allreduce(torch.ones(1), op=md.Sum)
        assert total.item() == md.size()


@check(min_size=2)
def odd_ranks_do_not_wait_for_even_ones() -> None:
    size = md.size()
    with added(list(range(0, size, 2)), list(range(1, size, 2))) as (even, odd):
        if odd.included():
            md.barrier(odd)
            md.allreduce(torch.ones(1), process_set=odd)
            if md.rank() == 1:
                md.send(torch.tensor([1.0]), 0, name="odd ranks are done")
        elif md.rank() == 0:
            # The other even ranks are in their barrier until this has come.
            md.recv(torch.zeros(1), 1, name="odd ranks are done")
        if even.included():
            md.barrier(even)


@check(min_size=3)
def two_threads_use_two_sets() -> None:
    with added(list(range(md.size() - 1))) as (most,):
        sums: dict[str, list[float]] = {"most": [], "all": []}

        def work(label: str, process_set: md.ProcessSet) -> None:
            for i in range(40):
                tensor = torch.full((5,), float(i))
                result = md.allreduce(tensor, op=md.Sum, name=f"t.{i}", process_set=process_set)
                sums[label].append(result[0].item())

        sets = {"most": most, "all": md.global_process_set}
        order = ("most", "all") if md.rank() % 2 else ("all", "most")
        threads = [
            threading.Thread(target=work, args=(label, sets[label]))
            for label in order
            if sets[label].included()
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sums["all"] == [float(i * md.size()) for i in range(40)]
        if most.included():
            assert sums["most"] == [float(i * (md.size() - 1)) for i in range(40)]


@check(min_size=3)
def two_sets_in_opposite_order() -> None:
    with added(list(range(md.size() - 1))) as (most,):
        if most.included():
            order = [most, md.global_process_set]
            for process_set in order if md.rank() % 2 else reversed(order):
                handle = md.allreduce_async(
                    torch.ones(3), op=md.Sum, name="opposite", process_set=process_set
                )
                if process_set is most:
                    mine = handle
                else:
                    everyone = handle
            assert md.synchronize(mine).tolist() == [md.size() - 1.0] * 3
            assert md.synchronize(everyone).tolist() == [float(md.size())] * 3
        else:
            md.allreduce(torch.ones(3), op=md.Sum, name="opposite")


@check(min_size=2)
def ranks_that_ask_for_different_sets() -> None:
    mine = [0] if md.rank() == 0 else [1]
    expect_error(
        lambda: md.add_process_set(mine),
        md.MismatchError,
        "disagree on the ranks",
        "rank 0 (",
        ": rank 1",
    )
    with added([1]) as (process_set,):  # The job goes on.
        assert process_set.ranks == [1]


@check(min_size=2)
def only_members_may_use_a_set() -> None:
    with added([0]) as (process_set,):
        tensor = torch.ones(4, 2)
        calls: dict[str, Callable[[], object]] = {
            "allreduce": lambda: md.allreduce(tensor, process_set=process_set),
            "allreduce_async_": lambda: md.allreduce_async_(tensor, process_set=process_set),
            "grouped_allreduce": lambda: md.grouped_allreduce([tensor], process_set=process_set),
            "allgather": lambda: md.allgather(tensor, process_set=process_set),
            "broadcast": lambda: md.broadcast(tensor, 0, process_set=process_set),
            "alltoall": lambda: md.alltoall(tensor, process_set=process_set),
            "reducescatter": lambda: md.reducescatter(tensor, process_set=process_set),
            "reduce": lambda: md.reduce(tensor, 0, process_set=process_set),
            "gather": lambda: md.gather(tensor, 0, process_set=process_set),
            "scatter": lambda: md.scatter(tensor, process_set=process_set),
            "send": lambda: md.send(tensor, 0, process_set=process_set),
            "recv": lambda: md.recv(tensor, 0, process_set=process_set),
            "barrier": lambda: md.barrier(process_set),
            "broadcast_object": lambda: md.broadcast_object(1, 0, process_set=process_set),
        }
        if not process_set.included():
            for call, function in calls.items():
                expect_error(
                    function,
                    ValueError,
                    f"{call}: rank {md.rank()} is not in {process_set!r}",
                    "only its members may call this",
                )


@check(min_size=3)
def places_outside_the_set_are_refused() -> None:
    outside = md.size() - 1
    with added(list(range(outside))) as (process_set,):
        if not process_set.included():
            return
        tensor = torch.ones(4, 2)
        number = process_set.process_set_id
        inside = f"process set {number} with ranks {process_set.ranks}"
        calls: list[tuple[Callable[[], object], str]] = [
            (
                lambda: md.broadcast(tensor, outside, name="o", process_set=process_set),
                f"broadcast of 'o': root_rank {outside} is not in {inside}",
            ),
            (
                lambda: md.reduce(tensor, outside, name="o", process_set=process_set),
                f"reduce of 'o': root_rank {outside} is not in {inside}",
            ),
            (
                lambda: md.gather(tensor, outside, name="o", process_set=process_set),
                f"gather of 'o': root_rank {outside} is not in {inside}",
            ),
            (
                lambda: md.scatter(tensor, None, outside, name="o", process_set=process_set),
                f"scatter of 'o': root_rank {outside} is not in {inside}",
            ),
            (
                lambda: md.send(tensor, outside, name="o", process_set=process_set),
                f"send: rank {outside} is not in {process_set!r}",
            ),
            (
                lambda: md.recv(tensor, outside, name="o", process_set=process_set),
                f"recv: rank {outside} is not in {process_set!r}",
            ),
            (
                lambda: md.broadcast_object(1, outside, process_set=process_set),
                f"root_rank is {outside}, expected one of the ranks {process_set.ranks}",
            ),
            (
                lambda: (
                    md.alltoall(tensor, [4], name="o", process_set=process_set)
                    if len(process_set.ranks) > 1
                    else md.alltoall(tensor, [2, 2], name="o", process_set=process_set)
                ),
                f"expected one for each of the {len(process_set.ranks)} ranks",
            ),
        ]
        for function, text in calls:
            expect_error(function, ValueError, text)


@check(min_size=2)
def bad_sets_are_refused() -> None:
    size = md.size()
    with added([0]) as (process_set,):
        number = process_set.process_set_id
        cases: list[tuple[Callable[[], object], type[Exception], str]] = [
            (
                lambda: md.add_process_set([0]),
                ValueError,
                f"add_process_set: ranks [0] are those of process set {number}; use that set",
            ),
            (
                lambda: md.add_process_set(list(range(size))),
                ValueError,
                f"ranks {list(range(size))} are those of the global process set, id 0",
            ),
            (
                lambda: md.add_process_set([0, size]),
                ValueError,
                f"contains rank {size}, but the job has ranks 0 to {size - 1}",
            ),
            (
                lambda: md.add_process_set(process_set),
                ValueError,
                f"{process_set!r} is already part of the job",
            ),
        ]
        for call, error, text in cases:
            expect_error(call, error, text)


@check(min_size=2)
def a_set_in_use_is_not_removed() -> None:
    # Rank 0 comes last, so the tensor is in flight on the others when they try.
    with added(list(range(1, md.size()))) as (rest,):
        if rest.included() and rest.size() > 1 and md.rank() > 1:
            handle = md.allreduce_async(torch.ones(1), name="still flying", process_set=rest)
            expect_error(
                lambda: md.remove_process_set(rest),
                ValueError,
                f"process set {rest.process_set_id} cannot be removed",
                "tensor 'still flying' is in flight",
            )
            md.send(torch.ones(1), 1, name="tried to remove")
            md.synchronize(handle)
        elif md.rank() == 1:
            for source in range(2, md.size()):
                md.recv(torch.zeros(1), source, name="tried to remove")
            if rest.size() > 1:
                md.allreduce(torch.ones(1), name="still flying", process_set=rest)
