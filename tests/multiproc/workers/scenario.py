"""Ranks that fail or leave on purpose: scenario.py NAME RESULT_DIR

The last rank misbehaves while the others wait for it in an allreduce: it reads the named pipes
RESULT_DIR/enqueued<r>, which they open once they have enqueued. Every other rank writes what it got
to RESULT_DIR/rank<r>.txt.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import torch

import mydist as md


def leave() -> None:
    """Finishes sooner than the others, without an error."""
    sys.exit(0)


def fail() -> None:
    raise RuntimeError("broken on purpose")


def exit_with_code() -> None:
    sys.exit(23)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    misbehave = {"leave": leave, "fail": fail, "exit": exit_with_code, "kill": kill}[name]
    md.init()
    for step in range(5):
        md.allreduce(torch.ones(10), name=f"warm.{step % 2}")
    if md.rank() == md.size() - 1:
        for rank in range(md.size() - 1):  # until all others have enqueued
            (folder / f"enqueued{rank}").read_bytes()
        misbehave()
    try:
        handle = md.allreduce_async(torch.ones(10), name="waits for all")
        (folder / f"enqueued{md.rank()}").write_bytes(b"")
        md.synchronize(handle)
    except md.MydistError as error:
        (folder / f"rank{md.rank()}.txt").write_text(f"{type(error).__name__}: {error}")
        raise
    (folder / f"rank{md.rank()}.txt").write_text("no error")


if __name__ == "__main__":
    main()
