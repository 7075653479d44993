"""A rank dies while the schedule is frozen: frozen_until_killed.py VICTIM FOLDER

The others write into FOLDER/rankN what they learn of it, and when; it writes when it dies.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
from multiproc.pretended_hosts import pretend_hosts
from multiproc.watched_job import write_row

import mydist as md

STEPS_BEFORE = 300


def main(victim: int, folder: Path) -> None:
    pretend_hosts()
    md.init()
    learned = "no error"
    try:
        for step in range(2 * STEPS_BEFORE):
            if step == STEPS_BEFORE and md.stats()["frozen_steps"] == 0:
                raise AssertionError("the schedule is not frozen")
            if step == STEPS_BEFORE and md.rank() == victim:
                write_row(folder, f"rank{victim}", {"at": time.monotonic()})
                os.kill(os.getpid(), signal.SIGKILL)
            md.allreduce(torch.ones(4), name="x")
    except Exception as error:
        learned = f"{type(error).__name__}: {error}"
    write_row(folder, f"rank{md.rank()}", {"at": time.monotonic(), "learned": learned})


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
