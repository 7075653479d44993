"""The errors of the launcher; each carries the exit code `mydistrun` ends with."""

from __future__ import annotations

EXIT_USAGE = 2
EXIT_START = 1
EXIT_NOT_EXECUTABLE = 126
EXIT_NOT_FOUND = 127
_MAX_SHOWN = 100


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
