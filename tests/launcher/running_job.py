"""Running `mydistrun` as a user does, and waiting for what it does without sleeping."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

SECONDS = 30.0


@dataclass
class Launched:
    """A running mydistrun whose standard output is read line by line."""

    popen: subprocess.Popen[bytes]
    lines: list[bytes] = field(default_factory=list)
    rest: bytes = b""

    def read_until(self, wanted: bytes, count: int = 1) -> list[bytes]:
        """Blocks until `count` lines contain `wanted`; fails after SECONDS or at the end."""
        deadline = time.monotonic() + SECONDS
        assert self.popen.stdout is not None
        fd = self.popen.stdout.fileno()
        while sum(wanted in line for line in self.lines) < count:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            data = os.read(fd, 65536) if ready else b""
            assert data, self._told_instead(wanted, count, has_ended=bool(ready))
            *complete, self.rest = (self.rest + data).split(b"\n")
            self.lines += complete
        return [line for line in self.lines if wanted in line]

    def _told_instead(self, wanted: bytes, count: int, has_ended: bool) -> str:
        """What there is in place of the lines, for a message; ends the command."""
        if not has_ended:
            self.popen.terminate()
        code, err = self.finish()
        how = f"it ended with {code}" if has_ended else f"it ran on for {SECONDS} s"
        return f"no {count} x {wanted!r} in {self.lines} + {self.rest!r}; {how}:\n{err}"

    def children(self) -> list[int]:
        """The processes that mydistrun itself has started and that run."""
        pid = self.popen.pid
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    def finish(self) -> tuple[int, str]:
        """Waits for the end; returns exit code and the error stream."""
        _, err = self.popen.communicate(timeout=SECONDS)
        return self.popen.returncode, (err or b"").decode("utf-8", "backslashreplace")


class Mydistrun:
    """Starts the command; whatever a test leaves running is killed afterwards."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("MYDIST_", "OMPI_"))}
        self.env["OMPI_ALLOW_RUN_AS_ROOT"] = self.env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
        self.env["OMP_NUM_THREADS"] = "1"
        self.running: list[Launched] = []

    def start(self, *arguments: str, **options: object) -> Launched:
        """Starts `mydistrun ARGUMENTS` in the test's directory."""
        popen: subprocess.Popen[bytes] = subprocess.Popen(  # type: ignore[call-overload]
            [sys.executable, "-m", "mydist.launcher", *arguments],
            **{
                "stdout": subprocess.PIPE,
                "stderr": subprocess.PIPE,
                "cwd": self.directory,
                "env": self.env,
                **options,
            },
        )
        self.running.append(Launched(popen))
        return self.running[-1]

    def run(self, *arguments: str) -> tuple[int, bytes, str]:
        """Runs it to the end; returns exit code, standard output and error stream."""
        popen = self.start(*arguments).popen
        out, err = popen.communicate(timeout=SECONDS)
        return popen.returncode, out, err.decode("utf-8", "backslashreplace")

    def script(self, text: str, name: str = "train.py") -> str:
        """Writes a Python script into the test's directory; returns its name."""
        (self.directory / name).write_text(text)
        return name


def wait_gone(pids: list[int], seconds: float = 5.0) -> None:
    """Blocks until none of the processes runs; fails when one still does after `seconds`."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"process {pid} still runs after {seconds} s"
        finally:
            os.close(fd)


def numbers(lines: list[bytes]) -> list[int]:
    """The last word of each line as a number."""
    return [int(line.split()[-1]) for line in lines]
