"""A rank of a job that suffers a fault: worker.py PHASE ACT VICTIM FOLDER

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
from pathlib import Path

import torch
from multiproc.arena_memory import arenas_held_by
from multiproc.pretended_hosts import pretend_hosts
from multiproc.watched_job import write_row

import mydist as md
from faults.catalogue import TENSOR, Act, Phase

STEPS_BEFORE = 15  # The schedule is frozen after ten.
SMALL, LARGE = 10, 1 << 22


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


def work(phase: Phase, act: Act, victim: int, folder: Path) -> None:
    """Reduces until the fault ends it, or until the victim submits its tensor after all."""
    data = torch.ones(LARGE if phase is Phase.INSIDE else SMALL)
    for _ in range(STEPS_BEFORE):
        md.allreduce(data, name=TENSOR)
    tell_ready(folder)
    if phase is Phase.BETWEEN and md.rank() == victim:
        suffer(act, folder)
    since = time.monotonic()
    try:
        md.allreduce(data, name=TENSOR)
        while phase is Phase.INSIDE:
            since = time.monotonic()
            md.allreduce(data, name=TENSOR)
    except md.MydistError as error:
        row = {"at": time.monotonic(), "since": since, "error": type(error).__name__}
        row |= {"text": str(error), "failure": error.failure}
        write_row(folder, f"learned{md.rank()}", row)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise


def main() -> None:
    """As the module says."""
    phase, act, victim, folder = sys.argv[1:]
    pretend_hosts()
    md.init()
    if Act(act) is not Act.KILL_LAUNCHER:
        # mpirun ends the others when a rank dies; each is to say first what it has seen.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    work(Phase(phase), Act(act), int(victim), Path(folder))


if __name__ == "__main__":
    main()
