"""Whether this program ends because it has failed: its peers are not waited for then."""

from __future__ import annotations

import functools
import sys
from typing import NoReturn

_installed = False
_exits_with_failure = False


def install() -> None:
    """From now on sys.exit() notes that it is called with a failure."""
    global _installed
    if _installed:
        return
    _installed = True
    leave = sys.exit

    @functools.wraps(leave)
    def noted(status: str | int | None = None, /) -> NoReturn:
        global _exits_with_failure
        _exits_with_failure = status not in (None, 0)
        leave(status)

    sys.exit = noted


def has_failed() -> bool:
    """Whether an exception has ended the program, or sys.exit() with a failure."""
    return _exits_with_failure or getattr(sys, "last_value", None) is not None
