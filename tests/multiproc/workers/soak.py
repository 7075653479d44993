"""Trains for 10,000 tiny steps and reports what grew: soak.py [--leak BYTES] [--varying]

--leak: so much more in every step. --varying: in every step rows are gathered as well, now more of
them and now fewer, so that no step is as the one before and the schedule never freezes.
Rank 0 prints one line, `GROWTH [{resource: amount}, …]`, by rank: what each of them held at the
end less what it held after the first 1,000 steps.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import sys
from pathlib import Path

import torch
from multiproc.arena_memory import arena_bytes
from multiproc.pretended_hosts import pretend_hosts

import mydist as md

WARM_STEPS = 1_000
STEPS = 9_000

_libc = ctypes.CDLL(None)
_libc.malloc.argtypes = [ctypes.c_size_t]
_libc.malloc.restype = ctypes.c_void_p
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


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--leak", type=int, default=0)
    parser.add_argument("--varying", action="store_true")
    options = parser.parse_args()
    pretend_hosts()
    md.init()
    torch.manual_seed(0)
    # Three buckets of the least size.
    model = torch.nn.Sequential(*(torch.nn.Linear(256, 256, bias=False) for _ in range(3)))
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-6),
        named_parameters=model.named_parameters(),
        gradient_as_buffer_view=True,
    )
    inputs = torch.full((1, 256), float(md.rank() + 1))
    kept: list[torch.Tensor | None] = []

    def steps(count: int) -> None:
        for number in range(count):
            optimizer.zero_grad(set_to_none=number % 2 == 0)
            loss = model(inputs).pow(2).mean()
            loss.backward()
            optimizer.step()
            md.allreduce(loss.detach())  # Without a name: another one in every step.
            md.barrier()
            # A program that keeps gradients: those of one step stay while the next are made.
            kept[:] = [parameter.grad for parameter in model.parameters()] if number % 3 else []
            if options.varying:
                md.allgather(torch.ones(1 + number * 7 % 50, 2), name="rows")
            if options.leak:
                _libc.malloc(options.leak)

    steps(WARM_STEPS)
    held()  # Which allocates, the first time.
    before = held()
    steps(STEPS)
    after = held()
    everyone = md.allgather_object({name: after[name] - before[name] for name in after})
    if md.rank() == 0:
        print(f"GROWTH {json.dumps(everyone)}", flush=True)
    md.shutdown()


if __name__ == "__main__":
    main()
