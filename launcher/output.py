"""What the children print: prefixed onto the terminal, and raw into files if asked.

Bytes pass through unchanged, valid UTF-8 or not. A line is prefixed once; a line longer than
MAX_LINE_BYTES is cut into several. Called on the loop's thread only; never blocks on the terminal.
"""

from __future__ import annotations

import datetime
import errno
import os
import re
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from mydist.launcher.bounded_file import irregular_kind
from mydist.launcher.bounded_writer import BoundedWriter
from mydist.launcher.children import Children
from mydist.launcher.errors import LaunchError
from mydist.launcher.failure_record import FailureRecord, RecordFilter, parse_record
from mydist.launcher.process_group import STDERR, STDOUT

MAX_LINE_BYTES = 1 << 20
TAIL_LINE_COUNT = 30
TAIL_LINE_BYTES = 400
WAITS_SECONDS = 10.0  # mpirun ends a job sooner. A rank waits in something else later.
_STREAM_NAMES = {STDOUT: b"stdout", STDERR: b"stderr"}
_LINE_END = re.compile(rb"\r\n|\r|\n")


class LineSplitter:
    """Cuts a byte stream at \\n, \\r or \\r\\n; holds at most MAX_LINE_BYTES of an open line.

    A carriage return ends a piece because progress bars never print anything else.
    """

    def __init__(self) -> None:
        self._open = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines completed by `data`, each with its end. A cut line gets a newline."""
        data = self._open + data
        lines = []
        position = 0
        # A match can begin no earlier than at a \r that was held back as the last byte.
        for match in _LINE_END.finditer(data, max(0, len(self._open) - 1)):
            if match.end() == len(data) and match[0] == b"\r":
                break  # the \n of a \r\n may be about to come
            lines += _cut(data[position : match.end()])
            position = match.end()
        self._open = data[position:]
        while len(self._open) > MAX_LINE_BYTES:
            lines.append(self._open[:MAX_LINE_BYTES] + b"\n")
            self._open = self._open[MAX_LINE_BYTES:]
        return lines

    def finish(self) -> list[bytes]:
        """The open line at the end of the stream, completed by a newline."""
        rest, self._open = self._open, b""
        return [rest if rest.endswith(b"\r") else rest + b"\n"] if rest else []


def _cut(line: bytes) -> list[bytes]:
    if len(line) <= MAX_LINE_BYTES + 2:
        return [line]
    pieces = [line[at : at + MAX_LINE_BYTES] for at in range(0, len(line), MAX_LINE_BYTES)]
    return [piece + b"\n" for piece in pieces[:-1]] + pieces[-1:]


class JobOutput:
    """Routes the output of all children to the terminal's two streams and to files.

    `mark` names a child in a prefix.
    """

    def __init__(
        self,
        stdout: BoundedWriter,
        stderr: BoundedWriter,
        timestamps: bool = False,
        now: Callable[[], datetime.datetime] = datetime.datetime.now,
        failure_tag: str = "",
        mark: Callable[[int], str] = str,
    ) -> None:
        self._writers = {STDOUT: stdout, STDERR: stderr}
        self._timestamps = timestamps
        self._now = now
        self._mark = mark
        self._splitters: dict[tuple[int, int], LineSplitter] = {}
        self._tails: dict[int, deque[bytes]] = {}
        self._open_progress: dict[int, int] = {}
        self._files: OutputFiles | None = None
        self._failure_tag = failure_tag
        self._filters: dict[tuple[int, int], RecordFilter] = {}
        self._failures: dict[int, FailureRecord] = {}
        self._caught: dict[int, FailureRecord] = {}
        self._waits: dict[int, tuple[float, FailureRecord]] = {}  # With the time of arrival.
        self._complained: set[int] = set()

    def attach_files(self, files: OutputFiles) -> None:
        """Also writes what comes, unprefixed, to these files."""
        self._files = files

    def add_child(self, child: int) -> None:
        """A child that was not there at first. Raises LaunchError where files cannot be made."""
        if self._files is not None:
            self._files.add(child)

    def write(self, child: int, stream: int, data: bytes) -> bool:
        """Takes bytes a child printed on stream 1 or 2. True when they tell of its failure."""
        has_told = False
        if self._failure_tag:
            # A script may send errors to its output, as 2>&1 does.
            key = (child, stream)
            data, records = self._filters.setdefault(key, RecordFilter(self._failure_tag)).feed(
                data
            )
            for record in records:
                if (failure := parse_record(record)) is None:
                    continue
                has_told = self._note_failure(child, failure) or has_told
        if data and stream == STDERR:
            self._complained.add(child)
        self._show(child, stream, data)
        return has_told

    def _note_failure(self, child: int, failure: FailureRecord) -> bool:
        """True when it ends the child."""
        if failure.only_waits:
            self._waits[child] = (time.monotonic(), failure)
        elif failure.has_recovered:
            self._caught.pop(child, None)
        elif failure.is_caught:
            self._caught[child] = failure
        else:
            self._failures[child] = failure
            return True
        return False

    def failure(self, child: int) -> FailureRecord | None:
        """The exception that the child said ended it; None when it said nothing."""
        return self._failures.get(child)

    def caught(self) -> dict[int, FailureRecord]:
        """The last exceptions of children that may have caught them and gone on."""
        return dict(self._caught)

    def has_complained(self, child: int) -> bool:
        """Whether the child printed to its error stream, or told of its failure."""
        return child in self._complained or child in self._failures

    def waits(self) -> dict[int, FailureRecord]:
        """What ranks said a moment ago that they wait in."""
        since = time.monotonic() - WAITS_SECONDS
        return {child: record for child, (at, record) in self._waits.items() if at >= since}

    def _show(self, child: int, stream: int, data: bytes) -> None:
        if self._files is not None:
            warning = self._files.write(child, stream, data)
            if warning:
                self.note(warning)
        splitter = self._splitters.setdefault((child, stream), LineSplitter())
        self._emit(child, stream, splitter.feed(data))

    def finish(self, child: int) -> None:
        """The child ended: shows its open lines."""
        for stream in (STDOUT, STDERR):
            if (filtered := self._filters.pop((child, stream), None)) is not None:
                self._show(child, stream, filtered.finish())
            splitter = self._splitters.pop((child, stream), None)
            if splitter is not None:
                self._emit(child, stream, splitter.finish())

    def note(self, text: str) -> None:
        """A line (or several) of the launcher itself, to the error stream."""
        self._writers[STDERR].push(
            self._end_progress(STDERR, -1) + text.encode("utf-8", "surrogateescape") + b"\n"
        )

    def tail(self, child: int) -> list[str]:
        """The last lines the child printed on its error stream, made printable."""
        lines = self._tails.get(child, ())
        return [line.decode("utf-8", "backslashreplace") for line in lines]

    def wants_pause(self) -> bool:
        """Whether the children's pipes should not be read for a moment."""
        return any(writer.wants_pause() for writer in self._writers.values())

    def close(self, timeout: float = 2.0) -> None:
        """Writes out what is queued, waiting at most `timeout` seconds for a stuck consumer."""
        dropped = sum(writer.dropped_bytes for writer in self._writers.values())
        if dropped:
            self.note(
                f"mydistrun: dropped {dropped} bytes of output, "
                "because its reader was closed or too slow"
            )
        for writer in self._writers.values():
            writer.close(timeout)
        if self._files is not None:
            self._files.close()

    def _emit(self, child: int, stream: int, lines: list[bytes]) -> None:
        if not lines:
            return
        prefix = b"[%s]<%s>:" % (self._mark(child).encode(), _STREAM_NAMES[stream])
        if self._timestamps:
            prefix = self._now().isoformat(timespec="milliseconds").encode() + b" " + prefix
        out = [self._end_progress(stream, child)]
        for line in lines:
            out.append(prefix + line)
            if stream == STDERR:
                self._remember(child, line)
        if lines[-1].endswith(b"\r"):
            self._open_progress[stream] = child
        self._writers[stream].push(b"".join(out))

    def _end_progress(self, stream: int, child: int) -> bytes:
        """A newline when another child's progress bar would be overwritten."""
        return b"\n" if self._open_progress.pop(stream, child) != child else b""

    def _remember(self, child: int, line: bytes) -> None:
        text = line.strip(b"\r\n")[:TAIL_LINE_BYTES]
        if text:
            self._tails.setdefault(child, deque(maxlen=TAIL_LINE_COUNT)).append(text)


class OutputFiles:
    """`DIR/rank.N/stdout` and `stderr`, `DIR/server.N/…`; private to the user, bytes unchanged."""

    def __init__(self, directory: Path, children: Children) -> None:
        """Creates directories and files. Raises LaunchError naming what cannot be created."""
        self._files: dict[tuple[int, int], int] = {}
        self._directory = directory
        self._children = children
        try:
            for child in children.everyone:
                self.add(child)
        except LaunchError:
            self.close()
            raise

    def add(self, child: int) -> None:
        """Creates those of a child. Raises LaunchError; those of the others stay open."""
        place = self._directory / self._children.folder(child)
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
        flags |= os.O_NONBLOCK  # Opening a named pipe would wait for its reader.
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            for stream, name in ((STDOUT, "stdout"), (STDERR, "stderr")):
                fd = self._files[child, stream] = os.open(place / name, flags, 0o600)
                if kind := irregular_kind(os.fstat(fd).st_mode):
                    raise OSError(errno.EEXIST, f"its {name} is {kind}")
        except OSError as error:
            self.remove(child)
            raise LaunchError(
                f"--output-filename {str(self._directory)!r}: cannot create {str(place)!r}: "
                f"{error.strerror}; give a directory you may write to"
            ) from None

    def write(self, child: int, stream: int, data: bytes) -> str | None:
        """Appends to the child's file. On the first failure of a file: the warning to show."""
        fd = self._files.get((child, stream))
        if fd is None:
            return None
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(fd, view) :]
        except OSError as error:
            os.close(self._files.pop((child, stream)))
            name = _STREAM_NAMES[stream].decode()
            return (
                f"mydistrun: cannot write the {name} file of {self._children.name(child)}: "
                f"{error.strerror}; the file ends here, the job continues"
            )
        return None

    def remove(self, child: int) -> None:
        """Closes those of a child. Idempotent."""
        for stream in (STDOUT, STDERR):
            if (fd := self._files.pop((child, stream), None)) is not None:
                os.close(fd)

    def close(self) -> None:
        """Closes all files. Idempotent."""
        while self._files:
            os.close(self._files.popitem()[1])
