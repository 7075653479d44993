"""What torch's backends have beside the usual collectives, as checks: barriers that name
the missing ranks, sparse tensors, hooks, memory, and errors that reach all members.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from multiproc.group_checks import new_checks, rank, size

REST, check = new_checks()
CPU = torch.device("cpu")


def backend_of(group: Any = None) -> Any:
    return (group or dist.group.WORLD)._get_backend(CPU)


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except dist.DistBackendError as error:
        return str(error)
    raise AssertionError("no error")


@check
def a_callback_of_a_receive_waits_for_another_message() -> None:
    if size() == 1:
        return
    following, previous = (rank() + 1) % size(), (rank() - 1) % size()
    second = torch.empty(1)

    def receive_again(done: Any) -> float:
        dist.recv(second, previous, tag=1)
        return float(second.item() + done.value()[0].item())

    receive = dist.irecv(first := torch.empty(1), previous)
    sum_of_both = receive.get_future().then(receive_again)
    dist.barrier()  # Or the callback would run in this thread, before it has sent anything.
    dist.send(torch.tensor([1.0]), following)
    receive.wait()
    assert first.item() == 1
    dist.send(torch.tensor([2.0]), following, tag=1)
    assert sum_of_both.wait() == 3


@check
def a_future_of_a_receive_that_is_over_is_complete() -> None:
    if size() == 1:
        return
    dist.send(torch.tensor([5.0]), (rank() + 1) % size())
    receive = dist.irecv(torch.empty(1), (rank() - 1) % size())
    receive.wait()
    assert receive.get_future().wait()[0].item() == 5


@check
def a_rank_that_gives_up_alone_is_named_by_all() -> None:
    if size() == 1:
        return
    group = dist.new_group(timeout=timedelta(seconds=0.3 if rank() == 0 else 60))
    begin = time.monotonic()
    if rank() == size() - 1:
        time.sleep(1.0)
        begin = time.monotonic()
    for _ in range(2):  # The second one fails with the first cause.
        text = error_of(lambda: dist.all_reduce(torch.ones(1), group=group))
        assert "did not take part within 0.3 s" in text, text
        assert ("rank 0 of the group (host " in text) == (rank() > 0), text
    assert time.monotonic() - begin < 3, time.monotonic() - begin


@check
def an_abort_of_one_rank_ends_what_the_others_wait_for() -> None:
    if size() == 1:
        return
    group = dist.new_group()
    if rank() == 0:
        backend_of(group).abort()
        text = error_of(lambda: dist.all_reduce(torch.ones(1), group=group))
        assert f"group '{group.group_name}' was destroyed" in text, text
    else:
        text = error_of(lambda: dist.all_reduce(torch.ones(1), group=group))
        assert "rank 0 of the group (host " in text and "was destroyed" in text, text
    dist.barrier()


@check
def threads_coalesce_each_for_itself() -> None:
    backend = backend_of(dist.new_group())
    tensors = [torch.ones(3), torch.ones(4)]
    works: list[Any] = [None, None]
    turn = threading.Barrier(2)

    def coalesce(index: int) -> None:
        backend._start_coalescing()
        turn.wait(20)
        if index == 1:  # All ranks submit in one order.
            turn.wait(20)
        backend.allreduce([tensors[index]])
        if index == 0:
            turn.wait(20)
        turn.wait(20)
        works[index] = backend._end_coalescing()

    threads = [threading.Thread(target=coalesce, args=[index]) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for work, tensor in zip(works, tensors, strict=True):
        work.wait()
        assert work.result()[0].data_ptr() == tensor.data_ptr()
        assert bool((tensor == size()).all())


@check
def a_monitored_barrier_names_who_is_missing() -> None:
    group = dist.new_group()
    backend = backend_of(group)
    backend.monitored_barrier(timedelta(seconds=20))
    if size() == 1:
        return
    if rank() == 0:
        text = error_of(lambda: backend.monitored_barrier(timedelta(seconds=0.2), True))
        missing = (
            "rank 1" if size() == 2 else f"ranks 1-{size() - 1}" if size() > 3 else "ranks 1, 2"
        )
        assert f"{missing} of the group did not call it within 0.2 s" in text, text
        dist.barrier()
    else:
        dist.barrier()
        assert "did not call it" in error_of(backend.monitored_barrier)  # It comes late.
    backend.monitored_barrier(timedelta(seconds=20))  # All are in step.


def sparse(values: list[float], rows: list[int]) -> torch.Tensor:
    data = torch.tensor(values).reshape(-1, 1) * torch.ones(1, 3)
    return torch.sparse_coo_tensor(torch.tensor([rows]), data, (6, 3))


@check
def sparse_tensors() -> None:
    own = sparse([1.0, 2.0, 4.0], [0, rank() % 6, rank() % 6])  # Not coalesced.
    tensor = own.clone()
    dist.all_reduce(tensor)
    expected = torch.zeros(6, 3)
    for other in range(size()):
        expected[0] += 1
        expected[other % 6] += 6
    assert torch.equal(tensor.to_dense(), expected), tensor
    assert tensor.is_coalesced() and tensor.indices().shape[1] == min(size(), 6)
    empty = torch.sparse_coo_tensor(torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 3), (6, 3))
    tensor = own.clone() if rank() == 0 else empty
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    torch.testing.assert_close(tensor.to_dense(), sparse([1.0, 6.0], [0, 0]).to_dense() / size())


@check
def sparse_tensors_that_do_not_fit() -> None:
    if size() > 1:
        shape = (6, 3) if rank() == 0 else (9, 2)
        tensor = torch.sparse_coo_tensor(torch.tensor([[0]]), torch.ones(1, shape[1]), shape)
        text = error_of(lambda: dist.all_reduce(tensor))
        assert "allreduce of 18 float32, sparse [9, 2] with 1 sparse dimension, Sum" in text, text
    for call, text in (
        (lambda: dist.all_reduce(sparse([1.0], [0]), op=dist.ReduceOp.MAX), "expected SUM or AVG"),
        (lambda: backend_of().broadcast(sparse([1.0], [0]), 0), "expected a dense one on the CPU"),
    ):
        try:
            call()
        except ValueError as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)


@check
def sparse_gradients_as_over_gloo() -> None:
    gloo = dist.new_group(backend="gloo")

    def gradient(group: Any) -> torch.Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(20, 4, sparse=True), nn.Linear(4, 2))
        parallel = nn.parallel.DistributedDataParallel(model, process_group=group)
        words = torch.tensor([[rank(), 7, rank() + 3], [7, 7, 19]])
        parallel(words).square().sum().backward()
        found = model[0].weight.grad
        assert found is not None and found.is_sparse
        return found

    own, theirs = gradient(dist.group.WORLD), gradient(gloo)
    assert torch.equal(own.to_dense(), theirs.to_dense())
    assert bool((own.to_dense()[7] != 0).all())
    dist.destroy_process_group(gloo)


@check
def memory_for_fully_sharded_modules() -> None:
    from torch.distributed.fsdp import fully_shard

    assert backend_of().supports_tensor_alloc(CPU)
    tensor = backend_of().allocate_tensor(5, dtype=torch.bfloat16, device=CPU)
    assert tensor.shape == (5,) and tensor.dtype == torch.bfloat16
    losses = []
    for takes_memory in (False, True):
        torch.manual_seed(0)
        model = fully_shard(nn.Linear(8, 4))
        model.set_allocate_memory_from_process_group_for_comm(takes_memory)
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            loss = model(torch.full((2, 8), 0.5 + rank())).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[0] == losses[1]


@check
def hooks_after_collectives() -> None:
    group = dist.new_group()
    seen: list[Any] = []
    group._register_on_completion_hook(lambda info: seen.append((info.op_type.name, info.seq)))
    group._enable_collectives_timing()
    works = [dist.all_reduce(torch.ones(2), group=group, async_op=True) for _ in range(3)]
    dist.broadcast(torch.ones(2), 0, group=group)
    group._wait_for_pending_works()
    expected = [("ALLREDUCE", 1), ("ALLREDUCE", 2), ("ALLREDUCE", 3), ("BROADCAST", 4)]
    assert sorted(seen) == expected, seen  # Several threads may call it.
    assert all(0 <= work._get_duration() < 10_000 for work in works)
    try:
        group._register_on_completion_hook(print)
    except RuntimeError as error:
        assert "hook" in str(error)
    else:
        raise AssertionError("two hooks")


@check
def old_names() -> None:
    group = dist.new_group()
    outputs = [[torch.empty(2), torch.empty(3)] for _ in range(size())]
    inputs = [torch.full((2,), float(rank())), torch.full((3,), 10.0 + rank())]
    dist.all_gather_coalesced(outputs, inputs, group=group)
    for other, (small, large) in enumerate(outputs):
        assert bool((small == other).all()) and bool((large == 10 + other).all())
    backend_of(group)._set_sequence_number_for_group()
    assert backend_of(group)._get_sequence_number_for_group() == 2


@check
def the_profiler_shows_the_calls() -> None:
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        dist.all_reduce(torch.ones(2))
        dist.broadcast(torch.ones(2), 0)
        if size() > 1:
            dist.send(torch.ones(1), (rank() + 1) % size())
            dist.recv(torch.ones(1), (rank() - 1) % size())
    names = {event.name for event in profiler.events()}
    expected = {"mydist:all_reduce", "mydist:broadcast"}
    if size() > 1:
        expected |= {"mydist:send", "mydist:recv"}
    assert expected <= names, {name for name in names if "mydist" in name}
