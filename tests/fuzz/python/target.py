"""Target: a function that takes any bytes, and must keep its promises whatever they are.

atheris calls it in `python -m fuzz.python`, and test_corpus.py with what tests/fuzz/corpus has.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """`name` is that of its folder in the corpus, too; `seeds` go far into the parser."""

    name: str
    run: Callable[[bytes], None]
    seeds: tuple[bytes, ...]


def expect(promise: bool, text: str) -> None:
    """A promise of the code under test; not an assert, which -O leaves out."""
    if not promise:
        raise AssertionError(f"a promise is broken: {text}")


def expect_one_line(error: BaseException) -> None:
    """A message for a user is one line, whatever it quotes."""
    text = str(error)
    expect(bool(text) and len(text.splitlines()) == 1, f"one line, got {text!r}")


def as_text(data: bytes) -> str:
    """As the command line and the environment reach Python."""
    return data.decode("utf-8", "surrogateescape")


def pieces_of(data: bytes) -> list[bytes]:
    """The same bytes as a pipe may hand them over; the cuts follow from the bytes."""
    pieces, position = [], 0
    while position < len(data):
        length = 1 + data[position] % 7
        pieces.append(data[position : position + length])
        position += length
    return pieces


class OneFile:
    """A file in memory, whose content is another one with each input."""

    def __init__(self) -> None:
        self._descriptor: int | None = None

    def holding(self, data: bytes) -> str:
        """Its path."""
        if self._descriptor is None:
            self._descriptor = os.memfd_create("fuzz")
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)
        return f"/proc/self/fd/{self._descriptor}"
