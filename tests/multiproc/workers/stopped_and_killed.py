"""One rank is stopped in a collective, then another one is killed: stopped_and_killed.py RESULT_DIR

Each rank is the child of what the launcher has started, so that it does not end the job: a watcher,
which stops rank 2, kills rank 1, and lets rank 2 go on when rank 0 knows. Rank 0 writes what it got
to RESULT_DIR/learned, and whether memory that it has reused since was left alone to
RESULT_DIR/memory. The other files there say how far somebody has come.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

import torch

import mydist as md

STOPPED, KILLED = 2, 1
# Large enough that malloc takes it from the kernel, and likely at the same place again.
COUNT = 16 << 20


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 45
    while not path.exists():
        assert time.monotonic() < deadline, f"nobody came to {path.name}"
        threading.Event().wait(0.01)


def reduce_until_lost(folder: Path) -> str:
    # Not freed by an exception's frames: the tensor is gone when this returns.
    data = torch.ones(COUNT)
    try:
        for step in range(10000):
            md.allreduce_(data, op=md.Average, name="x")
            if step == 1 and md.rank() == STOPPED:
                (folder / "reducing").touch()
    except md.MydistError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def run_rank(folder: Path) -> None:
    md.init()
    learned = reduce_until_lost(folder)
    if md.rank() != 0:
        return
    reused = [torch.full((COUNT,), 7.0) for _ in range(3)]
    (folder / "learned").write_text(learned)
    wait_for(folder / "over")
    is_intact = all(bool((tensor == 7.0).all()) for tensor in reused)
    (folder / "memory").write_text("intact" if is_intact else "overwritten")


def watch(pid: int, folder: Path) -> None:
    rank = int(os.environ["MYDIST_RANK"])
    if rank == STOPPED:
        wait_for(folder / "reducing")
        os.kill(pid, signal.SIGSTOP)
        (folder / "stopped").touch()
        wait_for(folder / "learned")
        os.kill(pid, signal.SIGCONT)
    if rank == KILLED:
        wait_for(folder / "stopped")
        os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    if rank == STOPPED:
        (folder / "over").touch()


def main() -> None:
    folder = Path(sys.argv[1])
    pid = os.fork()
    if pid == 0:
        run_rank(folder)
        return
    try:
        watch(pid, folder)
    except AssertionError:
        os.kill(pid, signal.SIGKILL)
        raise


if __name__ == "__main__":
    main()
