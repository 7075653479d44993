"""Starts process groups of the backend "mydist"; the argument says what is looked at."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

import mydist.c10d  # noqa: F401  (registers the backend)
from mydist import _c10d


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
    return _c10d.open_group(store, rank, 2, timedelta(seconds=60), "again")


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
    {"figures": figures, "again": again}[sys.argv[1]]()
