"""A control group with limits for one test, where this user may make one."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")
# What the limits are called in version 2 and, where it is another name, in version 1.
_OLD_NAMES = {"memory.max": "memory.limit_in_bytes"}
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class ControlGroup:
    """One with limits; processes are put in by the command that starts them."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def command(self, *words: str) -> list[str]:
        """The words as a command that runs in the group."""
        return ["sh", "-c", _ENTER, str(self.path), *words]

    def set_limit(self, name: str, value: str) -> None:
        """Such as pids.max."""
        is_old = not (self.path / name).exists()
        (self.path / (_OLD_NAMES.get(name, name) if is_old else name)).write_text(value)


def _own_group(controller: str) -> Path:
    """Where groups with this controller are made, below the one of this process."""
    for line in Path("/proc/self/cgroup").read_text("utf-8").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return _ROOT / controller / path.lstrip("/")
        if controllers == "" and (_ROOT / "cgroup.controllers").exists():
            return _ROOT / path.lstrip("/")
    raise FileNotFoundError(f"no control groups with {controller}")


@contextmanager
def control_group(limit: str, value: str) -> Iterator[ControlGroup]:
    """A group with this limit. Skips the test, saying why, where none can be made."""
    path = Path()
    try:
        path = _own_group(limit.partition(".")[0]) / f"mydist-test-{os.getpid()}"
        path.mkdir()
        group = ControlGroup(path)
        group.set_limit(limit, value)
    except OSError as error:
        with suppress(OSError):
            path.rmdir()
        pytest.skip(f"no control group with {limit} can be made here: {error}")
    try:
        yield group
    finally:
        _remove(path)


def _remove(path: Path) -> None:
    """Once the last process in it is gone."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return path.rmdir()
        except OSError:
            left = (path / "cgroup.procs").read_text().split()
            assert time.monotonic() < deadline, f"processes {left} still run in {path}"
            time.sleep(0.02)
