"""Starts process groups of the backend "mydist"; the argument says what is looked at."""

from __future__ import annotations

import os
import sys
import time

import torch
import torch.distributed as dist

import mydist.c10d  # noqa: F401  (registers the backend)


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


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"figures": figures}[sys.argv[1]]()
