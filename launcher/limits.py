"""Limits of the system that a launcher may meet: each becomes one line that names it."""

from __future__ import annotations

import errno
import threading

from mydist.launcher.errors import LaunchError

_HINTS = {
    errno.EMFILE: "; each local rank needs 3 descriptors, raise `ulimit -n`",
    errno.ENFILE: "; all processes of this machine together have too many files open",
    errno.EAGAIN: "; the limit of processes is reached, raise `ulimit -u` or the pids cgroup",
    errno.ENOMEM: "; this machine or its control group has no memory left",
}


def start_error(what: str, error: OSError) -> LaunchError:
    """`what` could not be started; names the limit where it is one."""
    hint = _HINTS.get(error.errno or 0, "")
    return LaunchError(f"cannot start {what}: {error.strerror}{hint}")


def is_limit(error: OSError) -> bool:
    """Whether the error means that a limit of the system is reached."""
    return error.errno in _HINTS


def start_thread(thread: threading.Thread) -> None:
    """Starts it. Raises LaunchError where the system has no thread left."""
    try:
        thread.start()
    except RuntimeError as error:  # Python says no more than that it cannot.
        raise start_error("a thread", BlockingIOError(errno.EAGAIN, str(error))) from None
