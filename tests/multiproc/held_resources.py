"""What a process holds: memory, descriptors, threads and what it shares with other ranks."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from pathlib import Path

from multiproc.arena_memory import arena_bytes

_libc = ctypes.CDLL(None)
_libc.malloc_trim.argtypes = [ctypes.c_size_t]


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


_libc.mallinfo2.restype = _Mallinfo


def held() -> dict[str, int]:
    """What this process holds now, in bytes or pieces."""
    gc.collect()
    # Freed memory that malloc keeps for later is resident too: a gradient of 256 KiB more or less,
    # by the order in which two threads freed theirs.
    _libc.malloc_trim(0)
    status = dict(
        line.split(":", 1) for line in Path("/proc/self/status").read_text("ascii").splitlines()
    )
    malloc = _libc.mallinfo2()
    maps = Path("/proc/self/maps").read_text("utf-8", errors="replace").splitlines()
    return {
        "private_bytes": int(status["RssAnon"].split()[0]) << 10,
        "shared_bytes": int(status["RssShmem"].split()[0]) << 10,
        "arena_bytes": arena_bytes(),  # Of all ranks, touched by this one or not.
        "malloc_bytes": malloc.uordblks + malloc.hblkhd,
        "python_blocks": sys.getallocatedblocks(),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "shared_mappings": sum("/dev/shm/" in line or "memfd:" in line for line in maps),
    }
