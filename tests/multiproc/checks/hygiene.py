"""What mydist does to its process, and signals to mydist: a program is to notice nothing of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

import mydist as md
from multiproc.registry import NotHereError, check

WATCHED = (signal.SIGALRM, signal.SIGCHLD, signal.SIGUSR1)
# Each step does all of it; the storm lasts for about this long.
STORM_S = 0.5
INTERVAL_S = 0.001


@contextmanager
def counted_signals() -> Iterator[Counter[int]]:
    """Counts what comes, by handlers that interrupt system calls."""
    counts: Counter[int] = Counter()

    def count(number: int, frame: FrameType | None) -> None:
        counts[number] += 1

    before = {number: signal.signal(number, count) for number in WATCHED}
    for number in WATCHED:
        signal.siginterrupt(number, True)
    try:
        yield counts
        assert all(signal.getsignal(number) is count for number in WATCHED)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


@check()
def a_storm_of_signals_has_no_effect() -> None:
    size, rank = md.size(), md.rank()
    total = size * (size + 1) / 2
    with counted_signals() as counts:
        signal.setitimer(signal.ITIMER_REAL, INTERVAL_S, INTERVAL_S)
        began, steps, goes_on = time.monotonic(), 0, True
        while goes_on:
            for length in (10, 100_000):
                handles = [
                    md.allreduce_async(torch.full((length,), rank + 1.0), name=f"s{i}", op=md.Sum)
                    for i in range(4)
                ]
                signal.raise_signal(signal.SIGUSR1)
                for handle in handles:
                    assert bool((md.synchronize(handle) == total).all())
            # Rank 0 says when it is enough; the others sleep in system calls meanwhile.
            time.sleep(0.005 if rank == 0 else 0)
            enough = time.monotonic() - began > STORM_S and steps >= 5
            goes_on = not bool(md.broadcast(torch.tensor([enough]), 0, name="enough"))
            steps += 1
        child = subprocess.run([sys.executable, "-S", "-c", ""], check=True)
        assert child.returncode == 0
        signal.setitimer(signal.ITIMER_REAL, 0)
    assert counts[signal.SIGALRM] > 20 and counts[signal.SIGCHLD] == 1, counts
    assert counts[signal.SIGUSR1] == 2 * steps, counts
    assert len(md.allgather_object(None)) == size


# Without the descriptors that mydistrun gives to a rank and its children.
LISTS_DESCRIPTORS = """
import os
for name in os.listdir("/proc/self/fd"):
    if int(name) > 2 and os.path.exists("/proc/self/fd/" + name):
        path = os.readlink("/proc/self/fd/" + name)
        if not path.startswith("/memfd:mydist-"):
            print(name, path)
"""


@check()
def a_program_that_a_rank_starts_inherits_nothing() -> None:
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        raise NotHereError("the MPI library has descriptors of its own")
    command = [sys.executable, "-S", "-c", LISTS_DESCRIPTORS]
    done = subprocess.run(command, close_fds=False, capture_output=True, text=True, check=True)
    assert done.stdout == ""
