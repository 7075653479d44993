"""send and recv: pairs that do not disturb others, matching names, ranks that disagree."""

from __future__ import annotations

from collections.abc import Callable

import torch

import mydist as md
from multiproc.checks.process_sets import expect_error
from multiproc.reference import MOVED, expect_equal, make
from multiproc.registry import check


@check(min_size=2, cases=[(dtype,) for dtype in MOVED])
def every_dtype(dtype: torch.dtype) -> None:
    for shape in ((), (0,), (7, 3)):
        if md.rank() == 0:
            md.send(make(0, dtype, shape), 1)
        elif md.rank() == 1:
            into = torch.zeros(shape, dtype=dtype)
            assert md.recv(into, 0) is into
            expect_equal(into, make(0, dtype, shape))


@check(min_size=2)
def the_kth_unnamed_send_meets_the_kth_recv() -> None:
    for other in range(md.size()):
        if other == md.rank():
            continue
        handles = [md.send_async(torch.tensor([md.rank(), i]), other) for i in range(5)]
        arrived = [torch.zeros(2, dtype=torch.int64) for _ in range(5)]
        receives = [md.recv_async(into, other) for into in arrived]
        # Others wait in another order; nobody depends on it.
        for i in reversed(range(5)):
            assert md.synchronize(receives[i]).tolist() == [other, i]
            assert md.synchronize(handles[i]) is None


@check(min_size=2)
def one_name_around_a_ring() -> None:
    size = md.size()
    for step in range(3):
        into = torch.zeros(4)
        handle = md.send_async(torch.full((4,), float(md.rank())), (md.rank() + 1) % size, "ring")
        md.recv(into, (md.rank() - 1) % size, "ring")
        md.synchronize(handle)
        assert into.tolist() == [float((md.rank() - 1) % size)] * 4, f"step {step}"


@check(min_size=2)
def both_ways_under_one_name() -> None:
    if md.rank() > 1:
        return
    other = 1 - md.rank()
    into = torch.zeros(3)
    handle = md.recv_async(into, other, name="swap")
    md.send(torch.full((3,), float(md.rank() + 1)), other, name="swap")
    assert md.synchronize(handle).tolist() == [other + 1.0] * 3


@check(min_size=2)
def views_and_large_tensors() -> None:
    whole = make(0, torch.float32, (500, 1000))
    if md.rank() == 0:
        md.send(whole.t()[::2], 1, name="view")
    elif md.rank() == 1:
        into = torch.full((500, 1000), -1.0)
        md.recv(into.t()[::2], 0, name="view")
        expect_equal(into[:, ::2].contiguous(), whole[:, ::2].contiguous())
        assert bool((into[:, 1::2] == -1).all())


@check(min_size=3)
def the_others_go_on_meanwhile() -> None:
    # Rank 0 waits for a message that is sent only after the others are done with theirs.
    rest = md.add_process_set(list(range(1, md.size())))
    if md.rank() == 0:
        md.recv(torch.zeros(1), 1, name="late")
    else:
        assert md.allreduce(torch.ones(1), op=md.Sum, process_set=rest).item() == md.size() - 1
        if md.rank() == 1:
            md.send(torch.zeros(1), 0, name="late")
    md.remove_process_set(rest)


DISAGREEMENTS: dict[str, tuple[Callable[[], object], Callable[[], object], list[str]]] = {
    "shape": (
        lambda: md.send(torch.ones(3), 1, name="pair"),
        lambda: md.recv(torch.ones(5), 0, name="pair"),
        ["3", "5"],
    ),
    "dtype": (
        lambda: md.send(torch.ones(3), 1, name="pair"),
        lambda: md.recv(torch.ones(3, dtype=torch.int64), 0, name="pair"),
        ["float32", "int64"],
    ),
}


@check(min_size=2, cases=[(kind,) for kind in DISAGREEMENTS])
def a_pair_that_disagrees(kind: str) -> None:
    if md.rank() > 1:
        return
    send, receive, mentioned = DISAGREEMENTS[kind]
    for _ in range(2):
        call = receive if md.rank() else send
        expect_error(call, md.MismatchError, "pair 0->1", "rank 0", "rank 1", *mentioned)
    into = torch.zeros(2)
    if md.rank() == 0:
        md.send(torch.ones(2), 1, name="pair")
    else:
        assert md.recv(into, 0, name="pair").tolist() == [1.0, 1.0]


@check(min_size=2)
def a_message_that_one_end_refuses_is_over_for_both() -> None:
    if md.rank() < 2:
        for number in range(2):
            try:
                if md.rank() == 0:
                    # The first is refused by the binding, the other before.
                    md.send([torch.ones(3).to(torch.uint16), 3][number], 1)  # type: ignore[arg-type]
                else:
                    md.recv(torch.empty(3), 0)
            except md.MismatchError as error:
                assert md.rank() == 1 and error.failure["ranks"] == [0], error.failure
            except TypeError:
                assert md.rank() == 0
            else:
                raise AssertionError("no error")
        if md.rank() == 0:
            md.send(torch.full((3,), 7.0), 1)
        else:
            assert md.recv(torch.empty(3), 0).tolist() == [7.0] * 3
