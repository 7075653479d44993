"""Processes by pid, as /proc shows them."""

from __future__ import annotations

import os
from pathlib import Path


def _state_and_parent(pid: int) -> tuple[str, int] | None:
    """The state's letter and the parent; None: there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[1])


def is_running(pid: int) -> bool:
    """Whether there is a process that has not ended; one that nothing has waited for yet has."""
    found = _state_and_parent(pid)
    return found is not None and found[0] not in "ZX"


def descendants(pid: int) -> set[int]:
    """The children of a process, their children, and so on."""
    parents = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        found = _state_and_parent(int(entry))
        if found is not None:
            parents[int(entry)] = found[1]
    family, last = set(), {pid}
    while last:
        last = {child for child, parent in parents.items() if parent in last} - family
        family |= last
    return family
