"""Starts process groups of the backend "mydist"; the argument says what is looked at."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import mydist.c10d  # noqa: F401  (registers the backend)
from mydist import _c10d

CPU = torch.device("cpu")


def shared_bytes() -> int:
    room = os.statvfs("/dev/shm")
    return (room.f_blocks - room.f_bfree) * room.f_frsize


def figures(count: int = 63) -> None:
    """The memory of a group at rest and the time that it takes; beside the group of all ranks."""
    dist.init_process_group("mydist")
    dist.barrier()
    before = shared_bytes()
    seconds, groups = [], []
    for _ in range(count):
        dist.barrier()
        begin = time.perf_counter()
        groups.append(dist.new_group())
        seconds.append(time.perf_counter() - begin)
    tensors = [torch.ones(100_000) for _ in groups]
    works = [
        dist.all_reduce(t, group=g, async_op=True) for t, g in zip(tensors, groups, strict=True)
    ]
    for work, tensor in zip(works, tensors, strict=True):
        work.wait()
        assert bool((tensor == dist.get_world_size()).all())
    dist.barrier()
    bytes_each = (shared_bytes() - before) // count
    print(f"GROUP {bytes_each} bytes, {sorted(seconds)[count // 2]:.4f} s", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def detail() -> None:
    """Torch's own checks around each call: TORCH_DISTRIBUTED_DEBUG=DETAIL."""
    dist.init_process_group("mydist", timeout=timedelta(seconds=60))
    rank, size = dist.get_rank(), dist.get_world_size()
    assert type(dist.group.WORLD._get_backend(CPU)).__name__ == "_ProcessGroupWrapper"
    tensor = torch.ones(3)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [size] * 3
    output = torch.empty(2)
    dist.reduce_scatter_single(output, torch.ones(2 * size))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, rank)
    assert objects == list(range(size))
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 3))
    model(torch.ones(2, 3)).sum().backward()
    try:
        dist.all_reduce(torch.ones(2 + rank))
    except RuntimeError as error:
        assert "Detected mismatch between collectives on ranks" in str(error), error
    else:
        raise AssertionError("no mismatch")
    errors_of_groups(rank)
    dist.destroy_process_group()
    print("DETAIL", flush=True)


def errors_of_groups(rank: int) -> None:
    """Torch shows them through its wrapper only."""
    group = dist.new_group(timeout=timedelta(seconds=0.2 if rank == 0 else 60))
    wrapper = group._get_backend(CPU)
    assert wrapper.get_error().name == "SUCCESS"
    if rank == 1:
        time.sleep(0.5)
    try:
        wrapper.wrapped_pg.allreduce([torch.ones(1)]).wait()
    except dist.DistBackendError:
        assert wrapper.get_error().name == ("TIMEOUT" if rank == 0 else "REMOTE_ERROR")
    else:
        raise AssertionError("no error")


class FailingStore(dist.Store):
    """Gives no answer from the second one on."""

    def __init__(self, store: dist.Store) -> None:
        super().__init__()
        self.store = store
        self.answers = 0

    def set(self, key: str, value: str) -> None:
        self.store.set(key, value)

    def add(self, key: str, value: int) -> int:
        return self.store.add(key, value)

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        return self.store.compare_set(key, expected, value)

    def get(self, key: str) -> bytes:
        self.answers += 1
        if self.answers > 1:
            raise RuntimeError("the store is out of order")
        return self.store.get(key)


def open_group(store: dist.Store, rank: int) -> Any:
    return _c10d.open_group(store, rank, [0, 1], 2, False, -1, timedelta(seconds=60), "again")


def again() -> None:
    """A start that fails on rank 1 only, which tries again; then one that rank 1 makes alone."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    port = [0]
    if rank == 0:
        served = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
        port = [served.port]
    dist.broadcast_object_list(port, src=0)
    store = served if rank == 0 else dist.TCPStore("127.0.0.1", port[0], 2)
    for _ in range(2):
        if rank == 1:
            try:
                open_group(FailingStore(store), rank)
            except dist.DistBackendError as error:
                assert "the store is out of order" in str(error), error
            else:
                raise AssertionError("no error")
        backend = open_group(store, rank)
        tensor = torch.ones(1)
        backend.allreduce([tensor]).wait()
        assert tensor.item() == 2
        backend.shutdown()
    dist.barrier()
    if rank == 1:
        store.set_timeout(timedelta(seconds=0.3))
        try:
            open_group(store, rank)
        except dist.DistBackendError as error:
            text = "Where some ranks start a group again, all have to: destroy it on the others"
            assert "rank 0 of the group for attempt 5; that rank has begun 4" in str(error), error
            assert text in str(error), error
        else:
            raise AssertionError("no error")
    dist.barrier()
    dist.destroy_process_group()
    print("AGAIN", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"figures": figures, "detail": detail, "again": again}[sys.argv[1]]()
