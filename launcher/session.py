"""The session that a rank and all its descendants live in; run as a script: the guard.

Every rank leads a session of its own, so "everything this rank started" is a question the kernel
can answer. The guard is a tiny process beside the launcher or agent: it reads `+SID` and `-SID`
lines from a pipe, and when the pipe closes because its owner died it kills the sessions left;
those told as `~SID` got SIGTERM from the kernel then, and have GENTLE_SECONDS to clean up.
This file imports nothing of the package, so that the guard starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import BinaryIO

GENTLE_SECONDS = 4.0


def session_pids(session_ids: set[int]) -> list[int]:
    """The living processes (zombies are not) whose session is among those given."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
        except OSError:
            continue  # it ended between listing and reading
        if int(fields[3]) in session_ids and fields[0] not in (b"Z", b"X"):
            found.append(int(entry))
    return found


def kill_sessions(session_ids: set[int], timeout: float = 2.0) -> bool:
    """SIGKILLs every process of the sessions until none is left or `timeout` seconds passed.

    Blocks for a few milliseconds as a rule. Returns whether nothing is left.
    """
    deadline = time.monotonic() + timeout
    while session_ids:
        pids = session_pids(session_ids)
        if not pids:
            break
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)  # the kernel needs a moment to take them down; forks are caught again
    return True


def guard(pipe: BinaryIO) -> None:
    """Keeps the set of sessions told through the pipe; kills them when it closes."""
    sessions: set[int] = set()
    gentle: set[int] = set()
    for line in pipe:
        session_id = int(line[1:])
        if line.startswith(b"-"):
            sessions.discard(session_id)
            gentle.discard(session_id)
        else:
            (gentle if line.startswith(b"~") else sessions).add(session_id)
    kill_sessions(sessions, timeout=10.0)
    deadline = time.monotonic() + GENTLE_SECONDS
    while gentle and session_pids(gentle) and time.monotonic() < deadline:
        time.sleep(0.02)
    kill_sessions(gentle, timeout=10.0)


if __name__ == "__main__":
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    guard(sys.stdin.buffer)
