"""The errors of the launcher; each carries the exit code `mydistrun` ends with.

The limits of the system that a launcher may meet are among them: each becomes one line.
"""

from __future__ import annotations

import errno
import threading

EXIT_USAGE = 2
EXIT_START = 1
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
_MAX_SHOWN = 100
_HINTS = {
    errno.EMFILE: "; each local rank needs 3 descriptors, raise `ulimit -n`",
    errno.ENFILE: "; all processes of this machine together have too many files open",
    errno.EAGAIN: "; the limit of processes is reached, raise `ulimit -u` or the pids cgroup",
    errno.ENOMEM: "; this machine or its control group has no memory left",
}


class LaunchError(RuntimeError):
    """The job could not be started. `str(error)` is what the user reads."""

    def __init__(self, text: str, exit_code: int = EXIT_START) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class UsageError(LaunchError):
    """A flag, the host list, the environment or the config file is wrong; nothing was started."""

    def __init__(self, text: str) -> None:
        super().__init__(text, EXIT_USAGE)


def shown(text: str) -> str:
    """A text as a message quotes it: in one line, and a long one cut."""
    return repr(text) if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]!r}…"


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
