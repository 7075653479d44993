"""What programs do with torch.distributed, over the backend "mydist"; a line for each check.

Prints "PASSED name" or "FAILED name: error" on every rank; the checks go on after a failure.
"""

from __future__ import annotations

import os
import re
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from multiproc.group_checks import new_checks, rank, size
from multiproc.pretended_hosts import pretend_hosts
from multiproc.reference import FLOATS, INTEGERS
from multiproc.rest_of_backend import REST
from multiproc.sharded_programs import SHARDED
from multiproc.torch_programs import PROGRAMS, made_again_with_fewer_ranks, store_of_all
from multiproc.wrong_calls import WRONG_CALLS

import mydist.c10d  # noqa: F401  (registers the backend)

REDUCED = (*INTEGERS, *FLOATS)
CHECKS, check = new_checks()


def inputs_of(rank: int, dtype: torch.dtype = torch.float32, count: int = 7) -> torch.Tensor:
    """Small whole numbers, which every order of adding gives the same sum of."""
    values = torch.arange(count, dtype=torch.int64) * 3 + rank + 1
    return (values % 5 + 1).to(dtype)


def all_inputs(dtype: torch.dtype = torch.float32, count: int = 7) -> list[torch.Tensor]:
    return [inputs_of(rank, dtype, count) for rank in range(size())]


@check
def allreduce_of_each_dtype_and_operation() -> None:
    for dtype in REDUCED:
        stack = torch.stack(all_inputs(dtype))
        for op, expected in (
            (dist.ReduceOp.SUM, stack.sum(0, dtype=dtype)),
            (dist.ReduceOp.PRODUCT, stack.prod(0, dtype=dtype)),
            (dist.ReduceOp.MIN, stack.amin(0)),
            (dist.ReduceOp.MAX, stack.amax(0)),
        ):
            tensor = inputs_of(rank(), dtype)
            dist.all_reduce(tensor, op=op)
            assert torch.equal(tensor, expected), (dtype, op, tensor, expected)


@check
def averages_and_factors() -> None:
    tensor = inputs_of(rank(), torch.float64)
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    torch.testing.assert_close(tensor, torch.stack(all_inputs(torch.float64)).mean(0))
    tensor = inputs_of(rank(), torch.float64)
    dist.all_reduce(tensor, op=dist._make_nccl_premul_sum(0.5))
    torch.testing.assert_close(tensor, torch.stack(all_inputs(torch.float64)).sum(0) / 2)


@check
def bits_and_bools() -> None:
    stack = torch.stack(all_inputs(torch.int32))
    for op, fold in (
        (dist.ReduceOp.BAND, torch.bitwise_and),
        (dist.ReduceOp.BOR, torch.bitwise_or),
        (dist.ReduceOp.BXOR, torch.bitwise_xor),
    ):
        expected = stack[0]
        for other in stack[1:]:
            expected = fold(expected, other)
        tensor = inputs_of(rank(), torch.int32)
        dist.all_reduce(tensor, op=op)
        assert torch.equal(tensor, expected), op
    flags = torch.tensor([rank() == 0, True, False])
    dist.all_reduce(flags)
    assert flags.tolist() == [True, True, False]


@check
def complex_numbers() -> None:
    tensor = inputs_of(rank()).to(torch.complex64) * 1j
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.stack(all_inputs()).sum(0).to(torch.complex64) * 1j)


@check
def broadcast_and_reduce_of_each_root() -> None:
    for root in range(size()):
        tensor = inputs_of(rank())
        dist.broadcast(tensor, root)
        assert torch.equal(tensor, inputs_of(root))
        tensor = inputs_of(rank())
        dist.reduce(tensor, root)
        total = torch.stack(all_inputs()).sum(0)
        assert torch.equal(tensor, total if rank() == root else inputs_of(rank()))


@check
def allgather_in_all_forms() -> None:
    outputs = [torch.empty(7) for _ in range(size())]
    dist.all_gather(outputs, inputs_of(rank()))
    assert torch.equal(torch.stack(outputs), torch.stack(all_inputs()))
    whole = torch.empty(7 * size())
    dist.all_gather_single(whole, inputs_of(rank()))
    assert torch.equal(whole, torch.cat(all_inputs()))
    uneven = [torch.empty(other + 1) for other in range(size())]
    dist.all_gather(uneven, torch.full((rank() + 1,), float(rank())))
    assert all(torch.equal(u, torch.full((r + 1,), float(r))) for r, u in enumerate(uneven))


@check
def reduce_scatter_in_all_forms() -> None:
    rows = [torch.stack([inputs_of(r) * (to + 1) for to in range(size())]) for r in range(size())]
    expected = torch.stack([of_rank[rank()] for of_rank in rows]).sum(0)
    output = torch.empty(7)
    dist.reduce_scatter(output, list(rows[rank()].unbind()))
    assert torch.equal(output, expected)
    output = torch.empty(7)
    dist.reduce_scatter_single(output, rows[rank()].reshape(-1))
    assert torch.equal(output, expected)


@check
def alltoall_in_all_forms() -> None:
    own = torch.arange(float(size())) + 10 * rank()
    output = torch.empty(size())
    dist.all_to_all_single(output, own)
    expected = torch.tensor([10.0 * other + rank() for other in range(size())])
    assert torch.equal(output, expected)
    # This rank sends r + 1 rows to rank r.
    sent = [torch.full((to + 1, 2), float(rank())) for to in range(size())]
    got = [torch.empty(rank() + 1, 2) for _ in range(size())]
    dist.all_to_all(got, sent)
    assert all(torch.equal(g, torch.full((rank() + 1, 2), float(r))) for r, g in enumerate(got))
    joined = torch.empty(size() * (rank() + 1), 2)
    splits = [to + 1 for to in range(size())]
    dist.all_to_all_single(joined, torch.cat(sent), [rank() + 1] * size(), splits)
    assert torch.equal(joined, torch.cat(got))


@check
def gather_and_scatter() -> None:
    for root in range(size()):
        is_root = rank() == root
        outputs = [torch.empty(7) for _ in range(size())] if is_root else None
        dist.gather(inputs_of(rank()), outputs, dst=root)
        if outputs is not None:
            assert torch.equal(torch.stack(outputs), torch.stack(all_inputs()))
        output = torch.empty(7)
        dist.scatter(output, all_inputs() if is_root else None, src=root)
        assert torch.equal(output, inputs_of(rank()))


@check
def objects() -> None:
    everything: list[Any] = [None] * size()
    dist.all_gather_object(everything, {"rank": rank(), "text": "x" * rank()})
    assert [entry["rank"] for entry in everything] == list(range(size()))
    sent = ["only rank 0 knows" if rank() == 0 else None]
    dist.broadcast_object_list(sent, src=0)
    assert sent == ["only rank 0 knows"]


@check
def any_layout_and_size() -> None:
    strided = torch.zeros(8, 6)[::2, ::3]
    strided += rank() + 1
    dist.all_reduce(strided)
    assert torch.equal(strided, torch.full((4, 2), size() * (size() + 1) / 2))
    turned = torch.ones(3, 5).t()
    dist.all_reduce(turned)
    assert torch.equal(turned, torch.full((5, 3), float(size())))
    columns = torch.zeros(3, 2 * size()).t()
    dist.all_gather_single(columns, torch.full((2, 3), float(rank())))
    assert columns[:, 0].tolist() == [float(row // 2) for row in range(2 * size())]
    output = torch.zeros(3, 2).t()
    dist.reduce_scatter_single(output, columns)
    assert torch.equal(output, torch.full((2, 3), float(rank() * size())))
    dist.all_reduce(torch.empty(0))
    large = torch.ones(300_001)
    dist.all_reduce(large)
    assert bool((large == size()).all())
    moved = torch.full((3,), 7 + rank(), dtype=torch.uint16)
    dist.broadcast(moved, 0)
    assert moved.tolist() == [7, 7, 7]


@check
def many_at_once_in_any_order() -> None:
    tensors = [torch.full((100,), float(i)) for i in range(20)]
    works = [dist.all_reduce(tensor, async_op=True) for tensor in tensors]
    for work in reversed(works):
        work.wait()
        work.wait()
        assert work.is_completed()
    assert all(bool((t == i * size()).all()) for i, t in enumerate(tensors))


@check
def futures_and_what_follows_them() -> None:
    tensor = inputs_of(rank())
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    assert torch.equal(doubled.wait(), torch.stack(all_inputs()).sum(0) * 2)

    # A callback that waits for an operation of the same group.
    def again(done: Any) -> torch.Tensor:
        more = done.value()[0]
        dist.all_reduce(more, async_op=True).get_future().wait()
        return more

    tensor = torch.ones(3)
    result = dist.all_reduce(tensor, async_op=True).get_future().then(again).wait()
    assert torch.equal(result, torch.full((3,), float(size() ** 2)))

    # Many of them at a time, as DDP's buckets are: they wait behind a long operation. Ranks come to
    # the second sums in one order only when all first ones have been submitted.
    dist.all_reduce(torch.ones(20_000_000), async_op=True)
    works = [dist.all_reduce(torch.ones(1), async_op=True) for _ in range(40)]
    futures = [work.get_future().then(again) for work in works]
    assert all(future.wait().item() == size() ** 2 for future in futures)


@check
def coalesced() -> None:
    tensors = [inputs_of(rank()), torch.ones(5)]
    with dist._coalescing_manager(async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert torch.equal(tensors[0], torch.stack(all_inputs()).sum(0))
    assert torch.equal(tensors[1], torch.full((5,), float(size())))


@check
def many_tensors_in_one_operation() -> None:
    """Small and large, of several dtypes and layouts, some in one piece of memory."""
    base = torch.zeros(40)
    small, wide = [base[:8], base[8:30].view(2, 11)], torch.zeros(6, 5).t()
    tensors = [*small, wide, torch.zeros(()), torch.zeros(0), torch.zeros(30_000), torch.zeros(3)]
    tensors += [torch.zeros(3, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)]
    for number, tensor in enumerate(tensors):
        tensor.copy_(torch.arange(tensor.numel()).view(tensor.shape) + number * (rank() + 1))
    with dist._coalescing_manager():
        for tensor in tensors:
            dist.all_reduce(tensor)
    ranks = sum(other + 1 for other in range(size()))
    for number, tensor in enumerate(tensors):
        whole = torch.arange(tensor.numel()).view(tensor.shape) * size() + number * ranks
        assert torch.equal(tensor, whole.to(tensor.dtype)), number
    assert bool((base[30:] == 0).all())


@check
def send_and_recv_by_tags() -> None:
    following, previous = (rank() + 1) % size(), (rank() - 1) % size()
    if size() == 1:
        return
    for tag in range(3):
        dist.send(inputs_of(rank()) + tag, following, tag=tag)
    for tag in (2, 0, 1):
        tensor = torch.empty(7)
        dist.recv(tensor, previous, tag=tag)
        assert torch.equal(tensor, inputs_of(previous) + tag)
    large = torch.full((3, 1_500_000), float(rank()))
    works = [dist.isend(large.t(), following), dist.irecv(large_one := torch.empty(1_500_000, 3))]
    works[0].wait()
    assert works[1].wait() is not False
    assert bool((large_one == previous).all())


@check
def recv_from_any_rank() -> None:
    if rank() > 0:
        dist.send(torch.tensor([float(rank())]), 0)
    else:
        seen = []
        for _ in range(size() - 1):
            tensor = torch.empty(1)
            source = dist.recv(tensor)
            assert tensor.item() == source
            seen.append(source)
        assert sorted(seen) == list(range(1, size()))


@check
def batched_transfers_in_both_directions() -> None:
    if size() == 1:
        return
    peers = [other for other in range(size()) if other != rank()]
    got = {other: torch.empty(7) for other in peers}
    transfers = [dist.P2POp(dist.irecv, got[other], other) for other in peers]
    transfers += [dist.P2POp(dist.isend, inputs_of(rank()), other) for other in peers]
    for work in dist.batch_isend_irecv(transfers):
        work.wait()
    assert all(torch.equal(got[other], inputs_of(other)) for other in peers)


@check
def wrong_transfers() -> None:
    group = dist.new_group()
    other = 1 - rank()
    takes_part = size() > 1 and rank() < 2
    for text, seconds in (
        (rf"no message from rank {other} \(host \S+, pid \d+\) with tag 0 came within 0.3 s", 0.3),
        ("sent 12 bytes, but the tensor to receive has 8", 20),
    ):
        try:
            if takes_part:
                receive = dist.irecv(torch.empty(2), other, group=group)
                receive.wait(timedelta(seconds=seconds))
        except dist.DistBackendError as error:
            assert re.search(text, str(error)), error
        else:
            assert not takes_part
        dist.barrier()  # Or a message for the second one would come to the first.
        if takes_part:
            dist.send(torch.ones(3), other, group=group)


@check
def a_forked_child_is_refused() -> None:
    pid = os.fork()
    if pid == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except dist.DistBackendError as error:
            dist.destroy_process_group()  # The parent's group lives on.
            os._exit(0 if "this is a forked child" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@check
def a_group_may_go_while_callbacks_run() -> None:
    group = dist.new_group()
    future = dist.all_reduce(torch.ones(1), group=group, async_op=True).get_future()
    slow = future.then(lambda done: time.sleep(0.2))
    dist.destroy_process_group(group)
    del group
    slow.wait()


@check
def a_time_out_of_any_length() -> None:
    group = dist.new_group(timeout=timedelta(days=999_999))
    for _ in range(2):
        if rank() == 0:
            time.sleep(0.1)  # Or no rank looks at the time.
        dist.all_reduce(torch.ones(1), group=group)


@check
def groups_of_some_ranks() -> None:
    members = sorted({0, size() - 1})
    group = dist.new_group(members)
    if rank() in members:
        tensor = torch.tensor([float(rank() + 1)])
        dist.all_reduce(tensor, group=group)
        assert tensor.item() == sum(member + 1 for member in members)
        dist.destroy_process_group(group)
    alone = [dist.new_group([other]) for other in range(size())]
    tensor = torch.ones(2)
    dist.all_reduce(tensor, group=alone[rank()])
    assert tensor.tolist() == [1, 1]


@check
def groups_in_crossed_order() -> None:
    groups = [dist.new_group() for _ in range(2)]
    order = groups if rank() % 2 else groups[::-1]
    tensors = {id(group): torch.ones(50) for group in groups}
    works = [dist.all_reduce(tensors[id(g)], group=g, async_op=True) for g in order]
    for work in works:
        work.wait()
    assert all(bool((tensor == size()).all()) for tensor in tensors.values())

    errors: list[BaseException] = []

    def use(group: Any) -> None:
        try:
            for _ in range(30):
                tensor = torch.ones(200)
                dist.all_reduce(tensor, group=group)
                assert bool((tensor == size()).all())
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=[group]) for group in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


@check
def different_calls_are_an_error_on_all_ranks() -> None:
    tensor = torch.ones(3 + (rank() == size() - 1))
    try:
        dist.all_reduce(tensor)
    except dist.DistBackendError as error:
        text = str(error)
        assert "its ranks call different operations" in text, text
        assert "allreduce of 3 float32, Sum" in text and "allreduce of 4 float32, Sum" in text
    else:
        assert size() == 1
    assert bool((tensor == 1).all())
    tensor = torch.ones(3)
    dist.all_reduce(tensor)  # The group is in step.
    assert bool((tensor == size()).all())


@check
def wrong_arguments_are_refused_at_the_call() -> None:
    for call, text in (
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32), dist.ReduceOp.AVG), "AVG"),
        (lambda: dist.all_reduce(torch.ones(2), dist.ReduceOp.BOR), "bitwise"),
        (lambda: dist.all_reduce(torch.ones(2, dtype=torch.uint16)), "uint16"),
    ):
        try:
            call()
        except (ValueError, RuntimeError, NotImplementedError) as error:
            assert text in str(error), error
        else:
            raise AssertionError(f"{text} was accepted")


@check
def a_missing_rank_is_named_after_the_timeout() -> None:
    group = dist.new_group(timeout=timedelta(seconds=0.5))
    if rank() == 0 and size() > 1:
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except dist.DistBackendError as error:
            assert "did not take part within 0.5 s" in str(error), error
        else:
            raise AssertionError("no error")
        try:
            dist.all_reduce(torch.ones(1), group=group)
        except dist.DistBackendError as error:
            assert "did not take part within 0.5 s" in str(error), error  # The first cause.
        else:
            raise AssertionError("no error")
    dist.barrier()


def main() -> None:
    torch.set_num_threads(1)
    pretend_hosts()
    dist.init_process_group("mydist", init_method="mydist://", timeout=timedelta(seconds=60))
    for function in [*CHECKS, *WRONG_CALLS, *REST, *PROGRAMS, *SHARDED]:
        try:
            function()
            dist.barrier()
        except BaseException as error:
            print(f"FAILED {function.__name__}: {type(error).__name__}: {error}", flush=True)
            if os.environ.get("TEST_TRACEBACK"):
                raise
        else:
            print(f"PASSED {function.__name__}", flush=True)
    dist.destroy_process_group()
    dist.init_process_group("mydist", init_method="mydist://")
    place = store_of_all(), rank(), size()
    dist.destroy_process_group()
    made_again_with_fewer_ranks(*place)
    print("PASSED destroyed_and_made_again", flush=True)


if __name__ == "__main__":
    main()
