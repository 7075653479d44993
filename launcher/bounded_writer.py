"""A thread that writes bytes to a descriptor through a bounded queue; its owner never waits.

The owner pushes from one thread; only the writer's own thread touches the descriptor. A consumer
that is gone, or makes no progress for `stall_seconds`, costs its own output and nothing else.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from mydist.launcher.errors import start_thread

CHUNK_BYTES = 1 << 16


class BoundedWriter:
    """Writes to `fd`, holding at most about `limit_bytes`. Does not close `fd`."""

    def __init__(
        self,
        fd: int,
        limit_bytes: int = 8 << 20,
        stall_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fd = fd
        self._limit_bytes = limit_bytes
        self._stall_seconds = stall_seconds
        self._clock = clock
        self._condition = threading.Condition()
        self._queue: deque[bytes] = deque()
        self._queued_bytes = 0
        self._dropped_bytes = 0
        self._last_progress = clock()
        self._dead = False
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="mydistrun-writer", daemon=True)
        start_thread(self._thread)

    def push(self, data: bytes) -> bool:
        """Queues the bytes; never blocks. False when they were dropped: the queue is full and the
        consumer stalled, or it is gone. Data pushed while full but not stalled is still taken."""
        with self._condition:
            if self._dead or (self._full() and self._stalled()):
                self._dropped_bytes += len(data)
                return False
            if not self._queue:
                self._last_progress = self._clock()
            self._queue.append(data)
            self._queued_bytes += len(data)
            self._condition.notify_all()
            return True

    def wants_pause(self) -> bool:
        """True while the producer had better wait: full, and the consumer still moving."""
        with self._condition:
            return self._full() and not self._dead and not self._stalled()

    @property
    def dead(self) -> bool:
        """Whether the consumer is gone."""
        return self._dead

    @property
    def dropped_bytes(self) -> int:
        """How much was dropped so far."""
        return self._dropped_bytes

    def close(self, timeout: float = 2.0) -> bool:
        """Waits until all is written, the consumer is gone, or it made no progress for `timeout`
        seconds. Returns whether all was written."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        return self.flush(timeout)

    def flush(self, timeout: float) -> bool:
        """As close(), but what is pushed later is still written."""
        with self._condition:
            self._last_progress = self._clock()
            while self._queued_bytes and not self._dead:
                left = self._last_progress + timeout - self._clock()
                if left <= 0:
                    return False
                self._condition.wait(left)
            return not self._queued_bytes

    def _full(self) -> bool:
        return self._queued_bytes >= self._limit_bytes

    def _stalled(self) -> bool:
        return self._clock() - self._last_progress >= self._stall_seconds

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._queue:
                    if self._closing:
                        return
                    self._condition.wait()
                chunk = self._queue.popleft()
            if not self._write(chunk):
                return

    def _write(self, chunk: bytes) -> bool:
        view = memoryview(chunk)
        while view:
            try:
                written = os.write(self._fd, view[:CHUNK_BYTES])
            except BlockingIOError:
                wait_writable(self._fd)
                continue
            except OSError:
                self._give_up()
                return False
            view = view[written:]
            with self._condition:
                self._queued_bytes -= written
                self._last_progress = self._clock()
                self._condition.notify_all()
        return True

    def _give_up(self) -> None:
        with self._condition:
            self._dead = True
            self._dropped_bytes += self._queued_bytes
            self._queue.clear()
            self._queued_bytes = 0
            self._condition.notify_all()


def wait_writable(fd: int) -> None:
    """Blocks until `fd`, a non-blocking descriptor, takes bytes again."""
    poll = select.poll()
    poll.register(fd, select.POLLOUT)
    poll.poll()
