"""What the ranks of this host have to compute with, read without mydist's help."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import mydist

_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/cpu"))
_LIMITS = ("cpu.max", "cpu.cfs_quota_us")  # Of control groups of version 2 and 1.


def _groups() -> Iterator[Path]:
    """The folders of the control groups that this process may be in, and of those around them."""
    text = Path("/proc/self/cgroup").read_text("ascii")
    own = {line.split(":", 2)[2].strip("/") for line in text.splitlines()}
    for mount in _MOUNTS:
        for group in own:
            yield from (mount / group, *(mount / parent for parent in Path(group).parents))


def has_quota() -> bool:
    """Whether a quota of CPU time may hold this process back."""
    files = [folder / name for folder in _groups() for name in _LIMITS]
    limits = {path.read_text("ascii").split()[0] for path in files if path.exists()}
    return not limits <= {"max", "-1"}


def has_a_core_each() -> bool:
    """Whether each rank of this host may use a core of its own all the time; all may use the same
    ones. With a quota: not for certain.
    """
    return mydist.local_size() <= len(os.sched_getaffinity(0)) and not has_quota()
