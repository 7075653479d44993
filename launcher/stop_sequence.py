"""How a job is ended: politely, then firmly, by default within five seconds. Used by one loop."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

# (seconds after the step before, signal). After a failure the others may finish printing first.
AFTER_FAILURE = ((0.8, signal.SIGTERM), (1.5, signal.SIGKILL))
# The rank that the others fail of says itself that it leaves: its exit code is the job's.
AFTER_DEPARTURE = ((2.5, signal.SIGTERM), (1.0, signal.SIGKILL))
AFTER_SIGINT = ((0.0, signal.SIGINT), (1.5, signal.SIGTERM), (1.5, signal.SIGKILL))
# Servers, when all ranks have ended.
AFTER_RANKS = ((0.0, signal.SIGTERM), (2.5, signal.SIGKILL))
AT_ONCE = ((0.0, signal.SIGKILL),)
Steps = Sequence[tuple[float, signal.Signals]]


def after_sigterm(timeout: float) -> Steps:
    """What follows when the job is told to stop: `timeout` seconds to save, then the end."""
    return ((0.0, signal.SIGTERM), (timeout, signal.SIGKILL))


class StopSequence:
    """Sends one signal after the other; a faster sequence replaces a slower one.

    `sent` is the signal sent last.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, send_signal: Callable[[signal.Signals], None]
    ) -> None:
        self._loop = loop
        self._send_signal = send_signal
        self._timer: asyncio.TimerHandle | None = None
        self.sent: signal.Signals | None = None

    @property
    def started(self) -> bool:
        """Whether a signal was sent."""
        return self.sent is not None

    @property
    def running(self) -> bool:
        """Whether a sequence was begun, be it that no signal was sent yet."""
        return self.started or self._timer is not None

    def begin(self, steps: Steps) -> None:
        """Starts the sequence, dropping what is left of an earlier one."""
        self.cancel()
        delay, signum = steps[0]
        if delay > 0:
            self._timer = self._loop.call_later(delay, self._step, signum, steps[1:])
        else:
            self._step(signum, steps[1:])

    def cancel(self) -> None:
        """Sends nothing more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _step(self, signum: signal.Signals, rest: Steps) -> None:
        self.sent = signum
        self._send_signal(signum)
        if rest:
            self.begin(rest)
