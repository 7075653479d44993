"""A running mydistrun whose output is read as it comes, without ever sleeping."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from multiproc.job import Outcome

START_SECONDS = 60.0
# docs/launcher.md: below five seconds from the first failure to the end.
STOP_SECONDS = 5.0


class RunningJob:
    """Output and error stream come as one, in the order they were written."""

    def __init__(self, command: Sequence[str], folder: Path, env: Mapping[str, str]) -> None:
        self.popen = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.output = ""

    def wait_for(self, text: str, count: int = 1, seconds: float = START_SECONDS) -> list[str]:
        """Blocks until `count` lines contain the text and returns them; fails with the output."""
        deadline = time.monotonic() + seconds
        while True:
            complete = self.output.rpartition("\n")[0].splitlines()
            found = [line for line in complete if text in line]
            if len(found) >= count:
                return found
            more = self._read(deadline)
            assert more, f"no {count} lines with {text!r}; output:\n{self.output}"

    def finish(self, seconds: float = START_SECONDS) -> Outcome:
        """Waits for the end; fails with the output when it does not come."""
        deadline = time.monotonic() + seconds
        while self._read(deadline):
            continue
        left = max(0.0, deadline - time.monotonic())
        try:
            return Outcome(self.popen.wait(left), self.output)
        except subprocess.TimeoutExpired:
            message = f"mydistrun still runs after {seconds:.1f} s; output:\n{self.output}"
            raise AssertionError(message) from None

    def kill(self) -> None:
        """Ends it at once. Its ranks are taken down by what mydistrun leaves in charge."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL)
        self.popen.communicate(timeout=30)

    def _read(self, deadline: float) -> bool:
        """Takes what comes next; False at the end of the output or of the time."""
        assert self.popen.stdout is not None
        fd = self.popen.stdout.fileno()
        ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
        data = os.read(fd, 1 << 16) if ready else b""
        self.output += data.decode("utf-8", "backslashreplace")
        return bool(data)
