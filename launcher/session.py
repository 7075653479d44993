"""The session that a rank and all its descendants live in; run as a script: the guard.

Every rank leads a session of its own, so "everything this rank started" is a question the kernel
can answer. The guard is a tiny process beside the launcher or agent: it reads `+SID` and `-SID`
lines from a pipe, and when the pipe closes because its owner died it kills the sessions left;
those told as `~SID` got SIGTERM from the kernel then, and have GENTLE_SECONDS to clean up. A line
`/PATH`, the path in hexadecimal digits, names a folder that goes last.
This file imports nothing of the package, so that the guard starts in a few milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from typing import BinaryIO

GENTLE_SECONDS = 4.0


def _stat(pid: int) -> list[bytes] | None:
    """The fields of its stat after the name: state, parent, …; None when it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def _processes() -> Iterator[tuple[int, list[bytes]]]:
    """The pid of each process, and the fields of `_stat`."""
    for entry in os.listdir("/proc"):
        fields = _stat(int(entry)) if entry.isdigit() else None
        if fields is not None:  # Else it ended between listing and reading.
            yield int(entry), fields


def session_pids(session_ids: set[int]) -> list[int]:
    """The living processes (zombies are not) whose session is among those given."""
    return [
        pid
        for pid, fields in _processes()
        if int(fields[3]) in session_ids and fields[0] not in (b"Z", b"X")
    ]


def stopped_pids(session_id: int) -> list[int]:
    """The processes of the session that a signal or a debugger has stopped, its leader first."""
    stopped = [
        pid
        for pid, fields in _processes()
        if int(fields[3]) == session_id and fields[0] in (b"T", b"t")
    ]
    return sorted(stopped, key=lambda pid: (pid != session_id, pid))


def has_children(pid: int) -> bool:
    """Whether the process has started another one that is still there."""
    return any(int(fields[1]) == pid for _, fields in _processes())


def leaves_ended_children(pid: int) -> bool:
    """Whether a child of the process has ended that it has not yet asked for its exit code.

    Of this process alone, so that it may be asked often. False when the process itself is stopped.
    """
    own = _stat(pid)
    if own is None or own[0] in (b"T", b"t"):
        return False
    children: list[bytes] = []
    with contextlib.suppress(OSError):  # The kernel may not have these files.
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                children += file.read().split()
    stats = (_stat(int(child)) for child in children)
    return any(fields is not None and fields[0] == b"Z" for fields in stats)


def handles(pid: int, signum: int) -> bool:
    """Whether the process has a handler of its own for the signal; False when it is gone."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            caught = next(line for line in file if line.startswith(b"SigCgt:"))
    except (OSError, StopIteration):
        return False
    return bool(int(caught.split()[1], 16) >> (signum - 1) & 1)


def ask_to_tell(session_ids: set[int]) -> None:
    """Sends SIGQUIT to the leader of each session or, if it has no handler, to those that have."""
    for leader in session_ids:
        asked = [leader] if handles(leader, signal.SIGQUIT) else session_pids({leader})
        for pid in asked:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if handles(pid, signal.SIGQUIT):
                    os.kill(pid, signal.SIGQUIT)


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
    """Keeps what is told through the pipe: sessions to kill, folders to remove when it closes."""
    sessions: set[int] = set()
    gentle: set[int] = set()
    folders: list[bytes] = []
    for line in pipe:
        if line.startswith(b"/"):
            folders.append(bytes.fromhex(line[1:].decode()))
            continue
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
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    # A scheduler may send them to every process of a job.
    for ignored in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"):
        signal.signal(signal.Signals[ignored], signal.SIG_IGN)
    guard(sys.stdin.buffer)
