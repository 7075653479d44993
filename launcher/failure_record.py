"""What a rank says of its own failure, as data: one marked line of its output. Pure.

The mark is a random word of the job, which only its ranks know. The line is taken out of the
output, so a user never sees it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

TAG_VARIABLE = "MYDIST_FAILURE_TAG"
# Begins the mark; hardly ever printed otherwise, so that output is held back hardly ever.
_START = b"\x1e"
_MAX_LINE_BYTES = 1 << 16
_MAX_TEXT = 256
_MAX_RANK = 65535  # as many as mydistrun starts
_MAX_PID = (1 << 31) - 1
_MAX_NUMBER = (1 << 63) - 1
_MAX_SECONDS = 1e9
_OLD_S = 0.5  # News that are older say so.
# The code of a rank that waits for others, and has not failed itself.
_WAITS = "WAITS"
# The code of a rank that has joined a job again after an error.
_RECOVERED = "RECOVERED"
# The codes of errors that a rank has because another one failed.
_CONSEQUENCES = frozenset({"PEER_LOST", "ABORTED", "TIMEOUT"})


@dataclass(frozen=True)
class Progress:
    """What a rank has completed last. Without an `operation` it has completed none.

    `number` counts what the process set has executed, from 1; 0 for a transfer, which has none.
    `age`: others know it of the rank, since so many seconds.
    """

    operation: str
    tensor: str
    number: int
    age: float = 0.0

    @property
    def text(self) -> str:
        """In words, e.g. `allreduce 'x', number 12`."""
        place = _place(self.operation, self.tensor) or "none"
        number = f", number {self.number}" if self.number else ""
        told = f", as told {self.age:.0f} s before" if self.age >= _OLD_S else ""
        return f"{place}{number}{told}"


@dataclass(frozen=True)
class FailureRecord:
    """The exception that ended a rank. `code` is empty for one that is not of mydist.

    `type` is the name of its class; `ranks` are those it is blamed on, and `finding` is what has
    been found out about them: "dead", "silent" or "late"; `operation` and `tensor` are what it
    happened in; `pid` is of the rank itself, `peer_pid` of the one blamed, where it is one, and
    `peer_pids` of all of them; `progress` is what the rank itself has completed last, and
    `peer_progress` what those blamed have, in their order. `is_caught`: the program may have caught
    the exception, so only the exit code of the rank tells whether it has failed.
    What is not known is empty, 0 or None.
    """

    type: str
    code: str = ""
    ranks: tuple[int, ...] = ()
    operation: str = ""
    tensor: str = ""
    pid: int = 0
    peer_pid: int = 0
    finding: str = ""
    progress: Progress | None = None
    is_caught: bool = False
    peer_pids: tuple[int, ...] = ()
    peer_progress: tuple[Progress | None, ...] = ()

    @property
    def is_consequence(self) -> bool:
        """Whether the rank failed because it lost another."""
        return self.code in _CONSEQUENCES

    @property
    def only_waits(self) -> bool:
        """Whether nothing ended the rank: it tells what it waits in, as mpirun ends the job."""
        return self.code == _WAITS

    @property
    def has_recovered(self) -> bool:
        """Whether what the rank has raised before does not end it."""
        return self.code == _RECOVERED

    @property
    def is_timeout(self) -> bool:
        """Whether the rank waited in vain for `ranks`, which may well be in the job."""
        return self.code == "TIMEOUT"

    @property
    def says_others_left(self) -> bool:
        """Whether `ranks` have left the job."""
        return self.is_consequence and not self.is_timeout

    @property
    def says_others_departed(self) -> bool:
        """Whether `ranks` have said themselves that they leave the job."""
        return self.code == "ABORTED"

    @property
    def says_others_are_silent(self) -> bool:
        """Whether `ranks` are in the job and give no sign of life."""
        return self.code == "PEER_LOST" and self.finding == "silent"

    @property
    def got_no_answer(self) -> bool:
        """Whether `ranks` were asked what they do, and did not answer."""
        return self.is_timeout and self.finding == "silent"

    def pid_of(self, rank: int) -> int:
        """Of a rank that it is blamed on; 0 where it is not known."""
        if self.ranks == (rank,) and self.peer_pid:
            return self.peer_pid
        return dict(zip(self.ranks, self.peer_pids, strict=False)).get(rank, 0)

    @property
    def place(self) -> str:
        """What it happened in, e.g. `allreduce 'x'`; empty when that is not known."""
        return _place(self.operation, self.tensor)

    @property
    def error(self) -> str:
        """Its class, and what it happened in, e.g. `PeerLostError in allreduce 'x'`."""
        return f"{self.type} in {self.place}" if self.place else self.type


def parse_record(line: bytes) -> FailureRecord | None:
    """The record in a line of JSON; None when it is none, as from another version."""
    try:
        fields = json.loads(line)
        return FailureRecord(
            type=_text(fields["type"]),
            code=_text(fields.get("code", "")),
            ranks=tuple(_number(rank, _MAX_RANK) for rank in fields.get("ranks", ())),
            operation=_text(fields.get("operation", "")),
            tensor=str(fields.get("tensor", ""))[:_MAX_TEXT],  # shown by repr()
            pid=_number(fields.get("pid", 0), _MAX_PID),
            peer_pid=_number(fields.get("peer_pid", 0), _MAX_PID),
            finding=_text(fields.get("finding", "")),
            progress=_progress(fields.get("last")),
            is_caught=fields.get("caught") is True,
            peer_progress=tuple(_progress(known) for known in fields.get("peer_progress", ())),
            peer_pids=tuple(_number(pid, _MAX_PID) for pid in fields.get("peer_pids", ())),
        )
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _progress(fields: dict[str, object] | None) -> Progress | None:
    if not fields:
        return None
    return Progress(
        operation=_text(fields.get("operation", "")),
        tensor=str(fields.get("tensor", ""))[:_MAX_TEXT],
        number=_number(fields.get("number", 0), _MAX_NUMBER),
        age=_seconds(fields.get("age", 0)),
    )


def _place(operation: str, tensor: str) -> str:
    return f"{operation} {tensor!r}".strip() if tensor else operation


def _number(value: object, most: int) -> int:
    """JSON also has fractions, `Infinity` and integers of any length."""
    if not isinstance(value, int) or not 0 <= value <= most:
        raise ValueError(f"got {value!r}, expected an integer from 0 to {most}")
    return value


def _seconds(value: object) -> float:
    if not isinstance(value, int | float) or not 0 <= value <= _MAX_SECONDS:
        raise ValueError(f"got {value!r}, expected seconds from 0 to {_MAX_SECONDS}")
    return float(value)


def _text(value: object) -> str:
    """A text that any terminal shows in one line. JSON also has halves of surrogate pairs."""
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
    return "".join(shown)[:_MAX_TEXT]


class RecordFilter:
    """Takes the records out of a stream of a rank, wherever its pieces are cut."""

    def __init__(self, tag: str) -> None:
        self._mark = _START + tag.encode()
        self._held = b""

    def feed(self, data: bytes) -> tuple[bytes, list[bytes]]:
        """What is left of the output, and the records that are complete."""
        data, self._held = self._held + data, b""
        rest, records, position = [], [], 0
        while (start := data.find(_START, position)) >= 0:
            rest.append(data[position:start])
            if not self._mark.startswith(data[start : start + len(self._mark)]):
                rest.append(_START)
                position = start + 1
                continue
            end = data.find(b"\n", start)
            if end >= 0:
                records.append(data[start + len(self._mark) : end])
                position = end + 1
            elif len(data) - start < _MAX_LINE_BYTES:
                self._held = data[start:]
                return b"".join(rest), records
            else:
                rest.append(_START)
                position = start + 1
        rest.append(data[position:])
        return b"".join(rest), records

    def finish(self) -> bytes:
        """What was held back at the end of the stream."""
        held, self._held = self._held, b""
        return held
