"""One rank is stopped; the others write what they learn of it, and when, and so does it at last.

Usage: stalled.py between|inside|busy FOLDER VICTIM
between: the victim stops itself before it submits what the others wait for.
inside: somebody stops it while all ranks reduce a large tensor again and again.
busy: the victim holds the GIL for three seconds meanwhile.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from pathlib import Path

import torch
from multiproc.pretended_hosts import pretend_hosts
from multiproc.watched_job import write_row

import mydist as md

STEPS_BEFORE = 30  # The schedule is frozen after ten.
LARGE = 1 << 22


def main() -> None:
    """Rank by rank."""
    phase, folder, victim = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    pretend_hosts()
    md.init()
    small = torch.ones(10)
    large = torch.ones(LARGE) if phase == "inside" else torch.ones(8)
    for _ in range(STEPS_BEFORE):
        md.allreduce(small, name="small")
    write_row(folder, f"ready{md.rank()}", {"pid": os.getpid()})
    row = {"error": "", "steps": 0}
    try:
        if phase == "between" and md.rank() == victim:
            os.kill(os.getpid(), signal.SIGSTOP)
        if phase == "busy" and md.rank() == victim:
            ctypes.PyDLL(None).sleep(3)
            write_row(folder, f"busy{victim}", {})
        is_enough = False
        while not is_enough:
            # All ranks leave after the same step.
            large[0] = float((folder / "enough").exists())
            is_enough = bool(md.allreduce(large, name="x")[0] > 0)
            row["steps"] += 1
    except md.MydistError as error:
        row |= {"error": type(error).__name__, "text": str(error), "failure": error.failure}
        if "STALLED_EXITS" in os.environ:
            write_row(folder, f"learned{md.rank()}", row)
            raise
    write_row(folder, f"learned{md.rank()}", row | {"at": time.monotonic()})
    while not (folder / "end").exists():
        time.sleep(0.05)


main()
