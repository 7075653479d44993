"""SIGTERM as a flag: the signal is remembered, and training ends when it is convenient."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any


class StopSignal:
    """Whether SIGTERM has come since this object was made. For the main thread.

    The handler that was there before still runs, after the flag is set; where there was none,
    SIGTERM no longer ends the process until `close`.
    """

    def __init__(self) -> None:
        """Raises ValueError outside the main thread, where Python cannot install handlers."""
        if threading.current_thread() is not threading.main_thread():
            raise ValueError(
                f"Checkpoint: made in thread '{threading.current_thread().name}', but SIGTERM can "
                "only be handled in the main thread; make it there, or pass on_sigterm=False"
            )
        self.received = False
        self._closed = False
        self._previous = signal.signal(signal.SIGTERM, self._receive)

    def close(self) -> None:
        """Puts the former handler back, unless another one has been installed on top of ours."""
        self._closed = True
        if signal.getsignal(signal.SIGTERM) == self._receive:
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
        while isinstance(owner := getattr(handler, "__self__", None), StopSignal):
            if not owner._closed:
                break
            handler = owner._previous
        return handler
