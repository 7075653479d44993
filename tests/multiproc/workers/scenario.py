"""Ranks that fail or leave on purpose: scenario.py NAME RESULT_DIR VICTIMS

The victims, such as 2 or 0,3, misbehave while the others wait for them in an allreduce: they read
the named pipes RESULT_DIR/enqueued<r>.<victim>, which each other rank r opens once it has enqueued.
A victim leaves the row struck<r> with the moment, and another rank the row learned<r> with what it
got and when.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from multiproc.watched_job import write_row

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


def kill_beside_children() -> None:
    """A worker that this process has forked and a program that it has started live on."""
    if os.fork() == 0:
        os.setsid()
        time.sleep(20)
        os._exit(0)
    subprocess.Popen(["sleep", "20"], close_fds=False, start_new_session=True)
    kill()


def vanish() -> None:
    """Without a farewell."""
    os._exit(23)


def crash() -> None:
    """As a library does that reads where nothing is."""
    ctypes.string_at(0)


MISBEHAVIOUR = {
    "leave": leave,
    "fail": fail,
    "exit": exit_with_code,
    "kill": kill,
    "kill beside children": kill_beside_children,
    "vanish": vanish,
    "crash": crash,
    "abort": os.abort,
}


def suffer(name: str, folder: Path, survivors: list[int]) -> None:
    """Misbehaves when all others have enqueued."""
    for rank in survivors:
        (folder / f"enqueued{rank}.{md.rank()}").read_bytes()
    write_row(folder, f"struck{md.rank()}", {"at": time.monotonic(), "pid": os.getpid()})
    MISBEHAVIOUR[name]()


def survive(folder: Path, victims: list[int]) -> None:
    """Waits for the victims in a collective."""
    row: dict[str, object] = {"error": ""}
    try:
        handle = md.allreduce_async(torch.ones(10), name="waits for all")
        for victim in victims:
            (folder / f"enqueued{md.rank()}.{victim}").write_bytes(b"")
        md.synchronize(handle)
    except md.MydistError as error:
        row = {"error": type(error).__name__, "text": str(error), "failure": error.failure}
        raise
    finally:
        write_row(folder, f"learned{md.rank()}", row | {"at": time.monotonic()})


def main() -> None:
    """As the module says."""
    name, folder, victims = sys.argv[1], Path(sys.argv[2]), [int(v) for v in sys.argv[3].split(",")]
    md.init()
    # As in a program that is not Python: a broken connection is to be an error, not the end.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    # mydistrun ends the others when a rank fails; each is to say first what it has seen.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for step in range(5):
        md.allreduce(torch.ones(10), name=f"warm.{step % 2}")
    if md.rank() in victims:
        suffer(name, folder, [rank for rank in range(md.size()) if rank not in victims])
    else:
        survive(folder, victims)


if __name__ == "__main__":
    main()
