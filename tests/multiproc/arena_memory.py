"""What of this process lies in the memory that the ranks of its host share (decision 0006)."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def is_arena(path: str) -> bool:
    """Whether a name that /proc gives a file is an arena's: in /dev/shm, and no name any more."""
    return path.startswith("/dev/shm/") and path.endswith(" (deleted)")


def arenas_mapped_by(pid: int | str) -> dict[range, str]:
    """The arenas' files by the addresses where the process has mapped them."""
    found = {}
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    for line in maps.splitlines():
        addresses, permissions, *_, path = line.split(maxsplit=5)
        if is_arena(path) and permissions == "rw-s":
            begin, end = (int(address, 16) for address in addresses.split("-"))
            found[range(begin, end)] = path
    return found


def lies_in_arena(tensor: torch.Tensor) -> bool:
    """Whether all bytes of a dense tensor do; false for one without any."""
    first = tensor.data_ptr()
    last = first + tensor.numel() * tensor.element_size() - 1
    return any(first in addresses and last in addresses for addresses in arenas_mapped_by("self"))


def arena_bytes() -> int:
    """Of memory that the arena's file takes up, for all ranks of this host. 0: there is none."""
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if is_arena(os.readlink(f"/proc/self/fd/{descriptor}")):
                return 512 * os.stat(int(descriptor)).st_blocks
        except FileNotFoundError:
            continue  # The one that listed them.
    return 0
