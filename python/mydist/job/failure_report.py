"""Tells mydistrun how this rank failed: as data, in a marked line of its error output.

mydistrun takes the line out and decides by it which rank failed first. Without mydistrun nothing
is written. Peers are not waited for, either, when a program ends because it has failed.

The program may catch an error of mydist. So the loss of a rank is told as soon as it is raised, and
the last error once more at the end of the program. mydistrun blames a rank for such an error only
if its exit code says that it has failed. init() takes it back: the program has recovered.

mpirun ends the other ranks when one has died, and on other hosts they may not know why. It sends
SIGCONT a second before SIGTERM. Then a rank that mydistrun has started through mpirun tells what it
waits in, and looks at once which rank has died.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, NoReturn

import torch  # noqa: F401  (the extension needs torch's libraries to be loaded)

from .. import _C
from ..errors import MydistError

_TAG_VARIABLE = "MYDIST_FAILURE_TAG"
_process = 0  # The one that reports; a forked child of it does not.
_is_installed = False
_members: tuple[int, ...] | None = None  # The launched ranks that form the job; None: all.
_exits_with_failure = False
_LOSSES = ("PEER_LOST", "ABORTED")  # After these no collective of the job works any more.
_last_raised: dict[str, object] | None = None  # The record of the last error since init().
# Of errors that are no MydistError: gives what is known of one, or nothing.
_sources: list[Callable[[BaseException], dict[str, Any]]] = []


def install() -> None:
    """From now on the exception that ends this program is told, and a failing sys.exit() noted."""
    global _process
    _note_exits()
    if not os.environ.get(_TAG_VARIABLE) or _process == os.getpid():
        return
    _process = os.getpid()
    _C.set_on_error(_note_raised)
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        # A second Ctrl-C, as mydistrun sends it after the terminal, is no error of this hook.
        with contextlib.suppress(Exception, KeyboardInterrupt):
            _tell(_behind(error))
        with contextlib.suppress(KeyboardInterrupt):
            previous(kind, error, traceback)

    sys.excepthook = hook
    if "OMPI_COMM_WORLD_RANK" in os.environ:
        _tell_waits_on_sigcont()


def _note_raised(error: MydistError) -> None:
    """Of an error that the program may catch. Those that follow a loss follow from it."""
    global _last_raised
    code = error.failure.get("code")
    is_own_shutdown = code == "ABORTED" and not error.failure.get("ranks")
    is_known = _last_raised is not None and _last_raised["code"] in _LOSSES
    if _process != os.getpid() or is_own_shutdown or is_known:
        return
    _last_raised = _describe(error) | {"caught": True}
    if code in _LOSSES:
        _write(_last_raised)


def tell_at_exit() -> None:
    """The last error, where no collective has succeeded since: it may be why the program ends."""
    if _process != os.getpid() or _last_raised is None:
        return
    then, now = _last_raised["last"], _C.own_progress()
    if not isinstance(then, dict) or now.get("number", 0) <= then.get("number", 0):
        _write(_last_raised)


def note_recovery() -> None:
    """The program has joined a job again, so what it has raised before does not end it."""
    global _last_raised
    if _last_raised is None or _process != os.getpid():
        return
    _last_raised = None
    _write({"type": "", "code": "RECOVERED", "pid": os.getpid()})


def add_source(source: Callable[[BaseException], dict[str, Any]]) -> None:
    """Errors of another class have a record like MydistError.failure, which `source` gives."""
    if source not in _sources:
        _sources.append(source)


def set_members(members: tuple[int, ...] | None) -> None:
    """The launched ranks that form the job, None for all. mydistrun knows ranks by these."""
    global _members
    _members = members


def _tell_waits_on_sigcont() -> None:
    """By a thread, which also runs while the main thread is in a collective.

    What the program does with SIGCONT, or with the descriptor for signals, comes first.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGCONT) is not signal.SIG_DFL:
        return
    arrivals, notices = os.pipe()
    os.set_blocking(notices, False)
    earlier = signal.set_wakeup_fd(notices, warn_on_full_buffer=False)
    if earlier != -1:
        signal.set_wakeup_fd(earlier)
        os.close(arrivals)
        os.close(notices)
        return
    signal.signal(signal.SIGCONT, _on_sigcont)
    threading.Thread(target=_follow, args=(arrivals,), name="mydist-waits", daemon=True).start()


def _on_sigcont(number: int, frame: FrameType | None) -> None:
    """Python writes to the descriptor for signals only where there is a handler."""


def _follow(arrivals: int) -> None:
    while numbers := os.read(arrivals, 512):
        if signal.SIGCONT not in numbers:
            continue
        _C.fear_for_peers()
        if (waits := _C.oldest_in_flight()) is not None:
            operation, name = waits
            place = {"operation": operation, "tensor": name} if operation else {"operation": name}
            last = {"last": _C.own_progress()}
            _write({"type": "", "code": "WAITS", "pid": os.getpid(), **place, **last})


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
        if _exits_with_failure:
            _tell_handled()
        leave(status)

    sys.exit = noted


def _tell_handled() -> None:
    """What sys.exit() is called in a handler of, and is none that C++ has raised in mydist._C."""
    handled = sys.exc_info()[1]
    if handled is None or _process != os.getpid():
        return
    error = _behind(handled)
    if not isinstance(error, MydistError) and _record_of(error):
        _write(_describe(error) | {"caught": True})


def has_failed() -> bool:
    """Whether an exception has ended the program, or sys.exit() with a failure."""
    return _exits_with_failure or getattr(sys, "last_value", None) is not None


def _behind(error: BaseException) -> BaseException:
    """The error of mydist that an exception was raised from or during; else the exception."""
    seen: set[int] = set()
    behind: BaseException | None = error
    while behind is not None and id(behind) not in seen:
        if _record_of(behind):
            return behind
        seen.add(id(behind))
        behind = behind.__cause__ or behind.__context__
    return error


def _record_of(error: BaseException) -> dict[str, Any]:
    if isinstance(error, MydistError):
        return error.failure
    return next(filter(None, (source(error) for source in _sources)), {})


def _tell(error: BaseException) -> None:
    if _process == os.getpid():
        _write(_describe(error))


def _describe(error: BaseException) -> dict[str, object]:
    record: dict[str, object] = {"type": type(error).__name__, "pid": os.getpid()}
    failure = _record_of(error)
    # As it was when mydist raised the error: the program may have shut down since.
    record["last"] = failure.get("own_progress") or _C.own_progress()
    if failure:
        record["code"] = failure.get("code", "")
        ranks = list(failure.get("ranks", ()))[:32]
        # Errors of others know ranks as mydistrun does.
        is_of_job = isinstance(error, MydistError) and _members is not None
        record["ranks"] = [_members[r] for r in ranks] if is_of_job and _members else ranks
        record["peer_pid"] = failure.get("pid", 0)
        record["peer_pids"] = list(failure.get("pids", ()))[:32]
        record["peer_progress"] = _progress_of(failure, ranks)
        record["finding"] = failure.get("finding", "")
        record["operation"] = failure.get("operation", "")
        record["tensor"] = failure.get("tensor", "")
    return record


def _progress_of(failure: dict[str, Any], ranks: list[int]) -> list[dict[str, object] | None]:
    """What these have completed last, in their order; None where it is not known."""
    known = failure.get("progress") or {}
    return [
        {**progress, "tensor": progress["tensor"][:256]} if (progress := known.get(r)) else None
        for r in ranks
    ]


def _write(record: dict[str, object]) -> None:
    """One line, at once and whole."""
    if record.get("tensor"):
        record["tensor"] = str(record["tensor"])[:256]
    line = f"\x1e{os.environ.get(_TAG_VARIABLE, '')}{json.dumps(record)}\n"
    with contextlib.suppress(OSError):
        os.write(2, line.encode())
