"""What a job that has ended may have left behind: processes, and memory in /dev/shm."""

from __future__ import annotations

import fcntl
import os
import re
import struct
from pathlib import Path

from multiproc.arena_memory import arenas_held_by

ARENA = re.compile(r"mydist-[0-9a-f]{32}")


def unowned_arenas() -> set[str]:
    """Files in /dev/shm that are arenas by name, and that no living rank has a lock on.

    An arena has a name only where ranks do not see each other's processes, and for a moment.
    """
    found = set()
    for name in filter(ARENA.fullmatch, os.listdir("/dev/shm")):
        try:
            with open(f"/dev/shm/{name}", "rb") as file:
                whole = struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
                kind = struct.unpack("hhqqi", fcntl.fcntl(file, fcntl.F_GETLK, whole))[0]
        except FileNotFoundError:
            continue
        if kind == fcntl.F_UNLCK:
            found.add(name)
    return found


def processes_with(text: str) -> list[str]:
    """Command lines, other than our own, in which `text` occurs."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue  # It has ended.
        if text in line:
            found.append(line)
    return found


def held_arenas(names: set[str]) -> dict[str, set[str]]:
    """Which of them, that have no name in /dev/shm, are not gone yet: by process."""
    found = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            held = arenas_held_by(entry) & names
        except OSError:
            continue  # It has ended, or is not ours.
        if held:
            found[entry] = held
    return found


def temporary_files(folder: Path) -> list[str]:
    """What lies in a folder that was TMPDIR, but for the one that torch makes for its compiler."""
    names = sorted(path.name for path in folder.iterdir())
    return [name for name in names if not name.startswith("torchinductor")]
