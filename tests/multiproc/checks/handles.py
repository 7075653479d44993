"""Handles: polling, waiting, and names in flight."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from soon import soon

import mydist as md
from multiproc.reference import expect_equal
from multiproc.registry import check


@check()
def poll_becomes_true() -> None:
    handles = [
        md.allreduce_async(torch.full((1000,), float(i)), name=f"poll.{i}", op=md.Sum)
        for i in range(8)
    ]
    md.barrier()  # By now all ranks have enqueued; what is left is short.
    for i, handle in enumerate(handles):
        while not md.poll(handle):
            pass
        expect_equal(md.synchronize(handle), torch.full((1000,), float(i * md.size())))


@check(min_size=2)
def a_name_in_flight_is_refused() -> None:
    # Rank 0 comes last, so the first use of the name is in flight on all others.
    name = "twice in flight"
    if md.rank() == 0:
        md.broadcast(torch.zeros(1), 1, name="gate")
        md.allreduce(torch.ones(2), name=name, op=md.Sum)
    else:
        handle = md.allreduce_async(torch.ones(2), name=name, op=md.Sum)
        began = time.monotonic()
        try:
            md.allreduce_async(torch.ones(2), name=name, op=md.Sum)
        except ValueError as error:
            # Rank 0 has not come yet, so this was without it.
            assert time.monotonic() - began < 0.5
            words = (
                f"tensor '{name}' is already in flight: a name can be enqueued again only after "
                "its handle has been synchronized; give every tensor its own name, or leave the "
                "name out"
            )
            assert words in str(error), error
        else:
            raise AssertionError("the second use of a name in flight was accepted")
        finally:
            md.broadcast(torch.zeros(1), 1, name="gate")
        expect_equal(md.synchronize(handle), torch.full((2,), float(md.size())))


@check(min_size=2)
def a_tensor_in_flight_cannot_be_resized() -> None:
    # Rank 0 comes last, so the tensor is in flight on all others.
    data = torch.ones(1000)
    if md.rank() == 0:
        md.broadcast(torch.zeros(1), 1, name="resize gate")
        md.allreduce_(data, name="of one size", op=md.Sum)
    else:
        handle = md.allreduce_async_(data, name="of one size", op=md.Sum)
        resizes: list[Callable[[], object]] = [
            # Of another tensor with its memory: torch changes the shape before it refuses.
            lambda: data.detach().resize_(100_000),
            lambda: data.untyped_storage().resize_(0),
        ]
        for resize in resizes:
            try:
                with soon():
                    resize()
            except RuntimeError as error:
                assert "resize storage that is not resizable" in str(error), error
            else:
                raise AssertionError("torch has freed memory that is in use")
        md.broadcast(torch.zeros(1), 1, name="resize gate")
        assert md.synchronize(handle) is data
    expect_equal(data, torch.full((1000,), float(md.size())))
    data.resize_(100_000)
    assert data.shape == (100_000,)


@check(min_size=2)
def an_input_that_is_changed_in_flight_is_an_error() -> None:
    # Rank 0 comes last, so the input is in flight on all others.
    total = torch.full((4,), float(md.size()))
    for kind in ("changed", "through a view", "polled", "in place", "beside a slice"):
        data = torch.ones(4)
        whole = torch.ones(8)
        if kind == "beside a slice":
            data = whole[:4]
        if md.rank() == 0:
            md.broadcast(torch.zeros(1), 1, name="change gate")
            md.allreduce(torch.ones(4), name=kind, op=md.Sum)
            continue
        start = md.allreduce_async_ if kind == "in place" else md.allreduce_async
        handle = start(data, name=kind, op=md.Sum)
        if kind in ("changed", "through a view"):
            (data[:2] if kind == "through a view" else data).zero_()
        if kind == "beside a slice":
            whole[4:].zero_()
        md.broadcast(torch.zeros(1), 1, name="change gate")
        if kind == "polled":
            while not md.poll(handle):
                pass
            data.zero_()
        if kind in ("polled", "in place", "beside a slice"):
            expect_equal(md.synchronize(handle), total)
            continue
        try:
            with soon():
                md.synchronize(handle)
        except ValueError as error:
            words = f"allreduce '{kind}': its input was changed while it was in flight"
            assert words in str(error), error
        else:
            raise AssertionError(f"not noticed: {kind}")


@check(min_size=2)
def a_group_with_a_name_in_flight_enqueues_nothing() -> None:
    if md.rank() == 0:
        md.broadcast(torch.zeros(1), 1, name="gate")
        md.grouped_allreduce([torch.ones(1)] * 2, name="whole", op=md.Sum)
    else:
        first = md.grouped_allreduce_async([torch.ones(1)] * 2, name="whole", op=md.Sum)
        try:
            md.grouped_allreduce_async([torch.ones(1)] * 3, name="whole", op=md.Sum)
        except ValueError as error:
            assert "whole" in str(error), str(error)
        else:
            raise AssertionError("a group with a member in flight was accepted")
        md.broadcast(torch.zeros(1), 1, name="gate")
        md.synchronize(first)
    # Nothing of the refused group is left: its third name is free and negotiates as usual.
    results = md.grouped_allreduce([torch.ones(1)] * 3, name="whole", op=md.Sum)
    assert [r.item() for r in results] == [md.size()] * 3


@check()
def waiting_out_of_order() -> None:
    handles = [
        md.allreduce_async(torch.tensor([float(i)]), name=f"late.{i}", op=md.Sum) for i in range(20)
    ]
    for i in reversed(range(20)):
        assert md.synchronize(handles[i]).item() == i * md.size()


@check()
def the_input_may_be_dropped_at_once() -> None:
    handles = [md.allreduce_async(torch.full((4096,), 3.0), op=md.Sum) for _ in range(10)]
    junk = [torch.full((4096,), -1.0) for _ in range(10)]
    for handle in handles:
        assert bool((md.synchronize(handle) == 3.0 * md.size()).all())
    assert all(bool((tensor == -1.0).all()) for tensor in junk)


def _sparse(tensor: torch.Tensor) -> Any:
    rows = torch.arange(len(tensor)).unsqueeze(0)
    sparse = torch.sparse_coo_tensor(rows, tensor, check_invariants=True)
    return md.synchronize(md.sparse_allreduce_async(sparse))


class Picky(md.Compressor):
    """Raises what no check of arguments raises."""

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        if not tensor.is_floating_point():
            raise RuntimeError("expected floating point")
        return tensor, None

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


UNNAMED: dict[str, Callable[[torch.Tensor], Any]] = {
    "allreduce": md.allreduce,
    "allreduce_": md.allreduce_,
    "allreduce_async": lambda t: md.synchronize(md.allreduce_async(t)),
    "compressed": lambda t: md.allreduce(t, compression=Picky),
    "compressed_async": lambda t: md.synchronize(md.allreduce_async(t, compression=Picky)),
    "compressed_reducescatter": lambda t: md.reducescatter(t, compression=Picky),
    "with gradient": lambda t: md.allreduce(t.requires_grad_(t.is_floating_point())),
    "grouped_allreduce": lambda t: md.grouped_allreduce([t, t.clone()])[1],
    "allgather": md.allgather,
    "grouped_allgather": lambda t: md.grouped_allgather([t])[0],
    "broadcast": lambda t: md.broadcast(t, 0),
    "broadcast_": lambda t: md.broadcast_(t, 0),
    "alltoall": md.alltoall,
    "reducescatter": md.reducescatter,
    "reduce": lambda t: md.reduce(t, 0),
    "gather": md.gather,
    "scatter": md.scatter,
    "sparse": _sparse,
    "no tensor": lambda t: md.allreduce(t if t.is_floating_point() else t.tolist()),
    "no root": lambda t: md.broadcast(t, 0 if t.is_floating_point() else "0"),  # type: ignore[arg-type]
    "no set": lambda t: md.allreduce(
        t,
        process_set=md.global_process_set if t.is_floating_point() else 0,  # type: ignore[arg-type]
    ),
    "barrier": lambda t: md.barrier(
        md.global_process_set if t.is_floating_point() else 0  # type: ignore[arg-type]
    ),
    "object": lambda t: md.broadcast_object(None, 0 if t.is_floating_point() else 99),
}


@check(min_size=2)
def what_a_signal_handler_raises_gives_no_number_back() -> None:
    def interrupt(*_: object) -> None:
        raise RuntimeError("of the handler")

    if md.rank() == 0:
        before = signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        try:
            md.barrier()
            raise AssertionError("the handler came too late")
        except RuntimeError as error:
            assert "of the handler" in str(error), error
        finally:
            signal.signal(signal.SIGALRM, before)
    else:
        time.sleep(0.3)  # Rank 0 waits for this one.
        md.barrier()
    md.barrier()
    expect_equal(md.allreduce(torch.ones(2)), torch.ones(2))


@check(min_size=2, cases=[(call,) for call in UNNAMED])
def a_call_that_one_rank_refuses_is_over_for_all(call: str) -> None:
    """No later call of that rank meets the others' call, which would give wrong numbers."""
    run = UNNAMED[call]
    rows = 2 * md.size()
    for _ in range(2):
        tensor = torch.ones(rows, 3)
        try:
            run(tensor.to(torch.uint16) if md.rank() == 0 else tensor)
        except md.MismatchError as error:
            assert md.rank() != 0
            assert "a rank has refused its call" in str(error), error
            assert error.failure["ranks"] == [0], error.failure
        except (TypeError, ValueError, RuntimeError):  # The last is torch's, and Picky's.
            assert md.rank() == 0
        else:
            raise AssertionError("no error")
    for number in (1.0, 2.0):
        result = run(torch.full((rows, 3), number))
        assert result is None or bool((result.to_dense() == number).all())


@check(cases=[(call,) for call in UNNAMED])
def a_call_that_all_ranks_refuse_is_over(call: str) -> None:
    run = UNNAMED[call]
    rows = 2 * md.size()
    try:
        run(torch.ones(rows, 3).to(torch.uint16))
    except (TypeError, ValueError, RuntimeError) as error:
        assert not isinstance(error, md.MydistError), error
    else:
        raise AssertionError("uint16 was accepted")
    result = run(torch.ones(rows, 3))
    assert result is None or bool((result.to_dense() == 1.0).all())


@check(min_size=2)
def a_layer_that_was_refused_keeps_no_number() -> None:
    if md.rank() == 0:
        try:
            md.SyncBatchNorm(3)(torch.ones(4, 3).to(torch.float8_e4m3fn))
        except RuntimeError as error:  # torch's own.
            assert not isinstance(error, md.MydistError)
        else:
            raise AssertionError("float8 was accepted")
    layer = md.SyncBatchNorm(3)
    assert layer(torch.rand(4, 3)).shape == (4, 3)
