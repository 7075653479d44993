"""Takes mpirun's `--tag-output` apart: which rank wrote which piece, and what mpirun said itself.

mpirun tags every piece it reads (`[1,2]<stdout>:`), not every line, so unbuffered ranks meet
inside one line: `[1,0]<stdout>:a [1,1]<stdout>:b`. The pieces are therefore handed on by rank and
become lines again further down. Text that looks like such a tag cannot be told from one. Pure.
"""

from __future__ import annotations

import re

from mydist.launcher.output import LineSplitter
from mydist.launcher.process_group import STDERR, STDOUT

_TAG_BYTES = 40  # no tag is longer
_TAGS = {
    STDOUT: re.compile(rb"\[\d{1,9},(\d{1,9})\]<stdout>:"),
    STDERR: re.compile(rb"\[\d{1,9},(\d{1,9})\]<stderr>:"),
}
_TAG_BEGINNING = re.compile(rb"\[(?:\d[\d,]*(?:\](?:<[a-z]*>?)?)?)?\Z")
Piece = tuple[int, bytes]


class TaggedStream:
    """One of mpirun's two streams; tags of ranks from `rank_count` on are text."""

    def __init__(self, stream: int, rank_count: int) -> None:
        self._tag = _TAGS[stream]
        self._rank_count = rank_count
        self._writer: int | None = None  # of the present line, None at its beginning
        self._held = b""
        self._own = LineSplitter()

    def feed(self, data: bytes) -> tuple[list[Piece], list[bytes]]:
        """The pieces by rank in order, and the lines that mpirun itself completed."""
        data = self._held + data
        recent = max(0, len(data) - _TAG_BYTES)
        cut = _TAG_BEGINNING.search(data, recent)  # the rest of a tag may be about to come
        self._held = data[cut.start() :] if cut else b""
        return self._split(data[: cut.start()] if cut else data)

    def finish(self) -> tuple[list[Piece], list[bytes]]:
        """What is left at the end of the stream."""
        held, self._held = self._held, b""
        pieces, lines = self._split(held)
        return pieces, lines + self._own.finish()

    def _split(self, data: bytes) -> tuple[list[Piece], list[bytes]]:
        pieces: list[Piece] = []
        lines: list[bytes] = []
        position = 0
        for tag in self._tag.finditer(data):
            rank = int(tag[1])
            if rank < self._rank_count:
                self._take(data[position : tag.start()], pieces, lines)
                self._writer, position = rank, tag.end()
        self._take(data[position:], pieces, lines)
        return pieces, lines

    def _take(self, text: bytes, pieces: list[Piece], lines: list[bytes]) -> None:
        """Text without tags: up to a newline the writer's, after it mpirun's own."""
        if self._writer is not None and text:
            line, newline, text = text.partition(b"\n")
            pieces.append((self._writer, line + newline))
            if newline:
                self._writer = None
        lines += self._own.feed(text)
