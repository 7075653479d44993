"""init and shutdown many times in one process; nothing may be left over: cycles.py COUNT"""

from __future__ import annotations

import os
import sys

import torch

import mydist as md


def open_resources() -> tuple[int, int]:
    """Open descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


def main() -> None:
    count = int(sys.argv[1])
    settled = (0, 0)
    for cycle in range(count):
        md.init()
        result = md.allreduce(torch.tensor([float(md.rank() + cycle)]), name="cycle", op=md.Sum)
        n = md.size()
        assert result.item() == n * cycle + n * (n - 1) / 2, f"cycle {cycle}: {result}"
        md.shutdown()
        assert not md.is_initialized()
        if cycle == count // 4:
            settled = open_resources()
    left = open_resources()
    assert left[0] <= settled[0] and left[1] <= settled[1], f"grew from {settled} to {left}"
    print(f"CYCLES {count}", flush=True)


if __name__ == "__main__":
    main()
