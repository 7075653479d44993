"""Tells mydistrun how this rank failed: as data, in a marked line of its error output.

mydistrun takes the line out and decides by it which rank failed first. Without mydistrun nothing
is written.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from types import TracebackType

from .. import _C
from ..errors import MydistError

_TAG_VARIABLE = "MYDIST_FAILURE_TAG"
_MAX_REPORTS = 100  # Of a program that catches errors and goes on.
_reports = 0
_process = 0  # The one that reports; a forked child of it does not.


def install() -> None:
    """From now on errors of mydist, and exceptions that end this program, are told."""
    global _process
    if not os.environ.get(_TAG_VARIABLE) or _process == os.getpid():
        return
    _process = os.getpid()
    _C.on_failure(_tell)
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        _tell(error)
        previous(kind, error, traceback)

    sys.excepthook = hook


def _tell(error: BaseException) -> None:
    """Writes one line, at once and whole."""
    global _reports
    if _process != os.getpid() or _reports >= _MAX_REPORTS:
        return
    _reports += 1
    record: dict[str, object] = {"type": type(error).__name__}
    if isinstance(error, MydistError):
        failure = getattr(error, "failure", {})
        record["code"] = failure.get("code", "")
        record["ranks"] = list(failure.get("ranks", ()))[:32]
        record["tensor"] = failure.get("tensor", "")[:256]
    line = f"\x1e{os.environ.get(_TAG_VARIABLE, '')}{json.dumps(record)}\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode())
