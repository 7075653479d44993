"""Ranks that leave flight recorders: one rank is late to a collective, or fails.

Usage: flight_recorded.py late|fails|killed FOLDER VICTIM
late: the victim holds the GIL in a long call of C until there is a mark "enough".
fails: the victim raises; killed: it is killed. The others wait for it meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

import torch
from multiproc.watched_job import write_row

import mydist as md

STEPS_BEFORE = 30  # The schedule is frozen after ten.


def hold_the_gil(folder: Path) -> None:
    """Other threads of Python do not run meanwhile, nor do handlers of the module signal."""
    libc = ctypes.PyDLL(None)
    while not (folder / "enough").exists():
        libc.usleep(200_000)


def main() -> None:
    """Rank by rank."""
    how, folder, victim = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    md.init()
    for _ in range(STEPS_BEFORE):
        md.allreduce(torch.ones(10), name="small")
    write_row(folder, f"ready{md.rank()}", {"pid": os.getpid()})
    if md.rank() == victim:
        if how == "late":
            hold_the_gil(folder)
        elif how == "fails":
            raise RuntimeError("the victim fails")
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    md.allreduce(torch.ones(4), name="loss")


main()
