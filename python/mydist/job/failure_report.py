"""Tells mydistrun how this rank failed: as data, in a marked line of its error output.

mydistrun takes the line out and decides by it which rank failed first. Without mydistrun nothing
is written. Peers are not waited for, either, when a program ends because it has failed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from types import TracebackType
from typing import NoReturn

from ..errors import MydistError

_TAG_VARIABLE = "MYDIST_FAILURE_TAG"
_process = 0  # The one that reports; a forked child of it does not.
_is_installed = False
_exits_with_failure = False


def install() -> None:
    """From now on the exception that ends this program is told, and a failing sys.exit() noted."""
    global _process
    _note_exits()
    if not os.environ.get(_TAG_VARIABLE) or _process == os.getpid():
        return
    _process = os.getpid()
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        _tell(_behind(error))
        previous(kind, error, traceback)

    sys.excepthook = hook


def _note_exits() -> None:
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
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


def _behind(error: BaseException) -> BaseException:
    """The error of mydist that an exception was raised from or during; else the exception."""
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        if isinstance(behind, MydistError):
            return behind
        seen.add(id(behind))
        behind = behind.__cause__ or behind.__context__
    return error


def _tell(error: BaseException) -> None:
    """Writes one line, at once and whole."""
    if _process != os.getpid():
        return
    record: dict[str, object] = {"type": type(error).__name__, "pid": os.getpid()}
    if isinstance(error, MydistError):
        failure = getattr(error, "failure", {})
        record["code"] = failure.get("code", "")
        record["ranks"] = list(failure.get("ranks", ()))[:32]
        record["peer_pid"] = failure.get("pid", 0)
        record["operation"] = failure.get("operation", "")
        record["tensor"] = failure.get("tensor", "")[:256]
    line = f"\x1e{os.environ.get(_TAG_VARIABLE, '')}{json.dumps(record)}\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode())
