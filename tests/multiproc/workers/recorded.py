"""Work for a timeline: recorded.py MODE, where MODE is

short: some collectives, then a regular end.
kill: the last rank kills itself after a second of collectives.
forever: prints "READY pid" after a second of collectives and goes on until killed.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

import mydist as md


def work() -> None:
    handles = [md.allreduce_async(torch.ones(100), name=f"grad.{i}") for i in range(5)]
    for handle in handles:
        md.synchronize(handle)
    md.allgather(torch.ones(2), name="gathered")


def main() -> None:
    mode = sys.argv[1]
    md.init()
    started, announced = time.monotonic(), False
    work()
    while mode != "short":
        work()
        if time.monotonic() - started < 1.0 or announced:
            continue
        announced = True
        if mode == "kill" and md.rank() == md.size() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        print(f"READY {os.getpid()}", flush=True)
    md.shutdown()


if __name__ == "__main__":
    main()
