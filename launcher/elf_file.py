"""What the kernel needs beside a binary to start it: its loader, which the binary names."""

from __future__ import annotations

import os
import struct
import sys
from dataclasses import dataclass
from typing import BinaryIO

_MAGIC = b"\x7fELF"
_IDENT_BYTES = 16
_LOADER = 3  # PT_INTERP: the type of the program header that names it.
_MOST_HEADERS = 1024
_MOST_BYTES = 4096  # Of the name of the loader, as the kernel has it.
_I386, _X86_64 = 3, 62


@dataclass(frozen=True)
class _Layout:
    """Where the fields of a class of files lie, as (offset, format); see elf(5)."""

    headers: tuple[int, str]  # Offset of the program headers.
    header_bytes: tuple[int, str]
    header_count: tuple[int, str]
    content: tuple[int, str]  # In a program header: offset of its content,
    content_bytes: tuple[int, str]  # and how much that is.


_LAYOUTS = {
    1: _Layout((28, "I"), (42, "H"), (44, "H"), (4, "I"), (16, "I")),
    2: _Layout((32, "Q"), (54, "H"), (56, "H"), (8, "Q"), (32, "Q")),
}


def missing_loader(program: str) -> str | None:
    """The loader of a binary of this machine's kind, where there is no such file.

    Else None, also for what is no binary. One of another kind may run by an emulator, which finds
    its loader elsewhere.
    """
    try:
        loader = _loader_of(program)
    except (OSError, struct.error, ValueError):
        return None
    return loader if loader and not os.path.exists(loader) else None


def _loader_of(program: str) -> str | None:
    with open(program, "rb") as file:
        kind = _machine(file)
        if kind is None or kind not in _kinds_here():
            return None
        file.seek(0)
        ident = file.read(_IDENT_BYTES)
        order, layout = _order(ident), _LAYOUTS[ident[4]]
        start, size, count = (
            _number(file, order, 0, field)
            for field in (layout.headers, layout.header_bytes, layout.header_count)
        )
        for header in range(start, start + size * min(count, _MOST_HEADERS), size or 1):
            if _number(file, order, header, (0, "I")) == _LOADER:
                length = _number(file, order, header, layout.content_bytes)
                file.seek(_number(file, order, header, layout.content))
                name = file.read(min(length, _MOST_BYTES))
                return os.fsdecode(name.partition(b"\0")[0])
    return None


def _kinds_here() -> set[int | None]:
    """The machines whose binaries the kernel runs by itself."""
    with open(sys.executable, "rb") as file:
        own = _machine(file)
    return {own, _I386} if own == _X86_64 else {own}


def _machine(file: BinaryIO) -> int | None:
    """The kind of machine that a binary is for; None: it is no binary."""
    ident = file.read(_IDENT_BYTES)
    if ident[:4] != _MAGIC or len(ident) < _IDENT_BYTES or ident[4] not in _LAYOUTS:
        return None
    return _number(file, _order(ident), 0, (18, "H"))


def _order(ident: bytes) -> str:
    return ">" if ident[5] == 2 else "<"


def _number(file: BinaryIO, order: str, base: int, field: tuple[int, str]) -> int:
    offset, kind = field
    file.seek(base + offset)
    layout = struct.Struct(order + kind)
    (value,) = layout.unpack(file.read(layout.size))
    return int(value)
