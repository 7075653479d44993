"""A rank of a job that suffers a fault: worker.py PHASE ACT COLLECTIVE FAILPOINT VICTIM FOLDER

Every rank leaves the row ready<rank> in FOLDER. A survivor that gets an error leaves the row
learned<rank>, with the moment at which it was raised, and ends with that error. A victim that does
something itself waits for the mark "go" and leaves the row struck first.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from multiproc.arena_memory import arenas_held_by
from multiproc.pretended_hosts import pretend_hosts
from multiproc.watched_job import write_row

import mydist as md
from faults.catalogue import NP, TENSOR, Act, Collective, Phase

STEPS_BEFORE = 15  # The schedule is frozen after ten.
STEPS_IN_ALL = 45  # Of a job that is to end by itself.
# A group is packed and unpacked; a tensor of MEDIUM needs several steps of the arena.
SMALL, MEDIUM, LARGE = 12, 1 << 16, 1 << 22


def tell_ready(folder: Path) -> None:
    """The other ranks may not come to this place before this rank has submitted again."""
    row = {
        "pid": os.getpid(),
        "arenas": sorted(arenas_held_by("self")),
        "frozen": md.stats()["frozen_steps"] > 0,
    }
    write_row(folder, f"ready{md.rank()}", row | {"at": time.monotonic()})


def suffer(act: Act, folder: Path) -> None:
    """Waits for what is done to this rank, or for the mark to do it."""
    while not (folder / "go").exists():
        threading.Event().wait(0.002)
    write_row(folder, "struck", {"at": time.monotonic()})
    if act is Act.RAISE:
        raise RuntimeError("broken on purpose")
    if act is Act.LEAVE:
        sys.exit(0)


def call_of(collective: Collective, size: int) -> Callable[[], object]:
    """The call, which checks its result."""
    data = torch.ones(size)
    parts = [torch.ones(SMALL) for _ in range(3)]

    def grouped() -> None:
        md.grouped_allreduce_(parts, name=TENSOR)
        assert all(bool((part == 1).all()) for part in parts)

    def checked(result: torch.Tensor) -> None:
        assert bool((result == 1).all())

    calls: dict[Collective, Callable[[], object]] = {
        Collective.ALLREDUCE: lambda: checked(md.allreduce(data, name=TENSOR)),
        Collective.GROUPED: grouped,
        Collective.ALLGATHER: lambda: checked(md.allgather(data, name=TENSOR)),
        Collective.BROADCAST: lambda: checked(md.broadcast(data, 0, name=TENSOR)),
        Collective.ALLTOALL: lambda: checked(md.alltoall(data, name=TENSOR)),
        Collective.REDUCESCATTER: lambda: checked(md.reducescatter(data, name=TENSOR)),
        Collective.BARRIER: md.barrier,
        Collective.JOIN: md.join,
    }
    return calls[collective]


def work(phase: Phase, act: Act, collective: Collective, victim: int, folder: Path) -> None:
    """Calls until the fault ends it, or until the victim submits its tensor after all."""
    size = {Phase.BETWEEN: SMALL, Phase.INSIDE: LARGE, Phase.AT_POINT: MEDIUM}[phase]
    call = call_of(collective, size)
    if collective is not Collective.JOIN:
        for _ in range(STEPS_BEFORE):
            call()
    tell_ready(folder)
    if phase is Phase.BETWEEN and md.rank() == victim:
        suffer(act, folder)
    steps = {Phase.BETWEEN: 1, Phase.INSIDE: sys.maxsize, Phase.AT_POINT: STEPS_IN_ALL}[phase]
    since = time.monotonic()
    try:
        for _ in range(steps):
            since = time.monotonic()
            call()
        since = time.monotonic()
        if phase is Phase.AT_POINT:
            md.shutdown()
    except md.MydistError as error:
        row = {"at": time.monotonic(), "since": since, "error": type(error).__name__}
        row |= {"text": str(error), "failure": error.failure}
        write_row(folder, f"learned{os.environ['TEST_RANK']}", row)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise


def main() -> None:
    """As the module says."""
    phase, act, collective, failpoint, victim, folder = sys.argv[1:]
    pretend_hosts()
    rank = os.environ.get("MYDIST_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", ""))
    if failpoint and rank == victim:
        os.environ["MYDIST_FAILPOINT"] = failpoint
    md.init()
    os.environ["TEST_RANK"] = str(md.rank())  # After a failed shutdown it is not known any more.
    assert md.size() == NP
    if Act(act) is not Act.KILL_LAUNCHER:
        # mpirun ends the others when a rank dies; each is to say first what it has seen.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    work(Phase(phase), Act(act), Collective(collective), int(victim), Path(folder))


if __name__ == "__main__":
    main()
