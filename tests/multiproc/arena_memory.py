"""What of this process lies in the memory that the ranks of its host share (decision 0006)."""

from __future__ import annotations

import os
import re
from pathlib import Path

import torch

# What /proc calls a file that never had a name, or has it no more.
_ARENA = re.compile(r"/dev/shm/(#\d+|mydist-[0-9a-f]{32}) \(deleted\)")


def is_arena(path: str) -> bool:
    """Whether a name that /proc gives a file is an arena's; Open MPI has files there as well."""
    return _ARENA.fullmatch(path) is not None


def mapped_arenas(pid: str) -> dict[range, str]:
    """The arenas' files by the addresses where the process has mapped them."""
    found = {}
    maps = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    for line in maps.splitlines():
        addresses, permissions, *_, path = line.split(maxsplit=5)
        if is_arena(path) and permissions == "rw-s":
            begin, end = (int(address, 16) for address in addresses.split("-"))
            found[range(begin, end)] = path
    return found


def open_arenas(pid: str) -> dict[int, str]:
    """The arenas' files by the descriptors of the process."""
    found = {}
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        try:
            path = os.readlink(f"/proc/{pid}/fd/{descriptor}")
        except FileNotFoundError:
            continue  # Closed meanwhile.
        if is_arena(path):
            found[int(descriptor)] = path
    return found


def arenas_held_by(pid: str) -> set[str]:
    """The names, with the number of the file in them, of arenas that cannot go because of it."""
    return {*mapped_arenas(pid).values(), *open_arenas(pid).values()}


def lies_in_arena(tensor: torch.Tensor) -> bool:
    """Whether all bytes of a dense tensor do; false for one without any."""
    first = tensor.data_ptr()
    last = first + tensor.numel() * tensor.element_size() - 1
    return any(first in addresses and last in addresses for addresses in mapped_arenas("self"))


def arena_bytes() -> int:
    """Of memory that the arena's file takes up, for all ranks of this host. 0: there is none."""
    return sum(512 * os.stat(descriptor).st_blocks for descriptor in open_arenas("self"))
