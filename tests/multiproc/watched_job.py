"""A job that a test watches while it runs: its ranks write rows into a folder, and read marks.

A row is a file with a JSON object, a mark is an empty file; both appear all at once.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from multiproc.job import job_environment


def write_row(folder: Path, name: str, row: Mapping[str, Any]) -> None:
    """For a rank: leaves a row, which appears complete or not at all."""
    draft = folder / f"{name}.draft"
    draft.write_text(json.dumps(row))
    draft.rename(folder / name)


class WatchedJob:
    """A running job, and what its ranks write. A rank writes its pid into its row ready<rank>."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
        self.process = process
        self._folder = folder
        self._log = log

    def row(self, name: str, timeout: float = 60) -> dict[str, Any]:
        """The row, once it is there; fails when it does not come, or when the job ends before."""
        end = time.monotonic() + timeout
        while (row := self.row_if_there(name)) is None:
            assert time.monotonic() < end, f"no {name} after {timeout} s:\n{self.output()}"
            if self.process.poll() is not None and not (self._folder / name).exists():
                raise AssertionError(f"the job has ended before {name} came:\n{self.output()}")
            time.sleep(0.01)
        return row

    def row_if_there(self, name: str) -> dict[str, Any] | None:
        """The row, or None while there is none."""
        path = self._folder / name
        return json.loads(path.read_text()) if path.exists() else None

    def tell(self, name: str) -> None:
        """Leaves a mark for the ranks."""
        (self._folder / name).touch()

    def output(self) -> str:
        """What the job has printed so far."""
        return self._log.read_text(errors="replace")

    def await_output(self, pattern: re.Pattern[str], timeout: float = 60) -> None:
        """Returns when the job has printed it."""
        end = time.monotonic() + timeout
        while not pattern.search(self.output()):
            assert time.monotonic() < end, f"no {pattern.pattern!r} in {timeout} s: {self.output()}"
            time.sleep(0.02)

    def _end(self) -> None:
        """Ends the job, stopped ranks included."""
        for path in self._folder.glob("ready*[0-9]"):
            if self.process.poll() is None:
                with suppress(ProcessLookupError):
                    os.kill(json.loads(path.read_text())["pid"], signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@contextmanager
def watched_job(
    command: Sequence[str], env: Mapping[str, str], folder: Path
) -> Iterator[WatchedJob]:
    """Starts the command with the environment of test jobs and `env`; ends the job in any case."""
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            list(command),
            env=job_environment(env),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    job = WatchedJob(process, folder, log)
    try:
        yield job
    finally:
        job._end()
