"""SIGTERM as a flag: the signal is remembered, and training ends when it is convenient."""

from __future__ import annotations

import os
import signal
import threading
import weakref
from types import FrameType
from typing import Any


class StopSignal:
    """Whether SIGTERM has come since this object was made. For the main thread.

    The handler that was there before still runs, after the flag is set; where there was none,
    SIGTERM no longer ends the process until `close`, or until this object is gone.
    """

    def __init__(self) -> None:
        """Raises ValueError outside the main thread, where Python cannot install handlers."""
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                f"Checkpoint: made in thread '{threading.current_thread().name}', but SIGTERM can "
                "only be handled in the main thread; make it there, or pass on_sigterm=False"
            )
        self._handler = _Handler()
        self._end = weakref.finalize(self, self._handler.close)
        self._end.atexit = False

    @property
    def received(self) -> bool:
        """Whether SIGTERM has come."""
        return self._handler.received

    def close(self) -> None:
        """Puts the former handler back, unless another one has been installed on top of ours."""
        self._end()


class _Handler:
    """What Python calls for the signal; apart from its owner, whose end it must not delay."""

    def __init__(self) -> None:
        self.received = False
        self._closed = False
        self._previous = signal.signal(signal.SIGTERM, self._receive)

    def close(self) -> None:
        """See StopSignal. In another thread than the main one, ours stays and passes signals on."""
        self._closed = True
        in_main_thread = threading.current_thread() is threading.main_thread()
        if in_main_thread and signal.getsignal(signal.SIGTERM) == self._receive:
            # None: the former handler was not installed by Python and cannot be put back.
            signal.signal(signal.SIGTERM, self._before() or signal.SIG_DFL)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        self.received = True
        before = self._before()
        if callable(before):
            before(signum, frame)
        elif self._closed and before != signal.SIG_IGN:
            # Still called by a handler on top of ours; do what would have happened without us.
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)

    def _before(self) -> Any:
        """The handler below ours, past those of other objects that were closed meanwhile."""
        handler: Any = self._previous
        while isinstance(owner := getattr(handler, "__self__", None), _Handler):
            if not owner._closed:
                break
            handler = owner._previous
        return handler
