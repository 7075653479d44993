"""init and shutdown many times in one process; nothing may be left over: cycles.py COUNT"""

from __future__ import annotations

import atexit
import os
import sys
from pathlib import Path

import torch

import mydist as md

# Of resident memory, which grows by pages; 1,000 cycles may leave this much. A leak of one small
# object in a cycle is more, and so is a ring of the flight recorder that malloc keeps.
SLACK_KIB = 32


def holdings() -> dict[str, int]:
    """Descriptors, threads, segments of shared memory and private memory of this process."""
    mapped = Path("/proc/self/maps").read_text()
    status = Path("/proc/self/status").read_text().splitlines()
    (kib,) = (int(line.split()[1]) for line in status if line.startswith("RssAnon:"))
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "segments": mapped.count("/dev/shm/"),
        "exit functions": atexit._ncallbacks(),  # With the places of those that were taken out.
        "KiB": kib,
    }


def main() -> None:
    count = int(sys.argv[1])
    settled: dict[str, int] = {}
    for cycle in range(count):
        md.init()
        result = md.allreduce(torch.tensor([float(md.rank() + cycle)]), name="cycle", op=md.Sum)
        n = md.size()
        assert result.item() == n * cycle + n * (n - 1) / 2, f"cycle {cycle}: {result}"
        md.shutdown()
        assert not md.is_initialized()
        if cycle == count // 4:
            holdings()  # Which allocates, the first time.
            settled = holdings()
    left = holdings()
    slack = {"KiB": SLACK_KIB}
    grown = {name for name in left if left[name] > settled[name] + slack.get(name, 0)}
    assert not grown, f"grew from {settled} to {left}"
    print("GREW", left["KiB"] - settled["KiB"], "KiB", flush=True)
    print(f"CYCLES {count}", flush=True)


if __name__ == "__main__":
    main()
