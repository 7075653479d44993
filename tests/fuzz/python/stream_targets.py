"""What the launcher reads of agents, ranks, mpirun and the core, wherever it is cut."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

from fuzz.python.target import Target, as_text, expect, pieces_of
from mydist.job.rank_record import parents_record
from mydist.launcher import framing
from mydist.launcher.check_build import format_build_report
from mydist.launcher.failure_record import RecordFilter, parse_record
from mydist.launcher.output import LineSplitter
from mydist.launcher.platforms.mpi import find_failures, find_improper
from mydist.launcher.platforms.mpi_output import TaggedStream
from mydist.launcher.platforms.remote_host import RemoteHost
from mydist.launcher.process_group import STDERR, STDOUT
from mydist.launcher.server_addresses import parse_address

_RANKS = 4


def _expect_alike(run: Callable[[Iterable[bytes]], object], data: bytes) -> None:
    """However a stream is cut, the same comes out of it."""
    whole, cut = run([data]), run(pieces_of(data))
    expect(whole == cut, f"{whole!r} of the whole is {cut!r} of its pieces")


class _Remote(RemoteHost):
    """What it makes of frames, without ssh and an event loop."""

    def __init__(self) -> None:
        self.events: list[object] = []
        self._living = set(range(_RANKS))
        done: list[object] = []
        self.hello: Any = SimpleNamespace(done=lambda: bool(done), set_result=done.append)
        self._events: Any = SimpleNamespace(
            on_output=lambda *of: self.events.append(("output", *of)),
            on_started=lambda *of: self.events.append(("started", *of)),
            on_exited=lambda *of: self.events.append(("exited", *of)),
            on_address=lambda *of: self.events.append(("address", *of)),
        )

    def _lose(self, reason: str, exit_code: int = 1) -> None:
        self.events.append(("lost", reason, exit_code))


def agent_frames(data: bytes) -> None:
    """An agent's stream, with noise in front of it if the first byte is odd."""
    expects_magic, stream = bool(data[:1]) and data[0] % 2 == 1, data[1:]

    def run(pieces: Iterable[bytes]) -> object:
        remote, packed = _Remote(), b""
        reader = framing.FrameReader(expects_magic)
        try:
            for piece in pieces:
                for kind, payload in reader.feed(piece):
                    packed += framing.pack(kind, payload)
                    remote._handle(kind, payload)
        except framing.FrameError as error:
            return remote.events, str(error)
        expect(packed in stream, "frames are made of the stream's bytes")
        return remote.events, ""

    _expect_alike(run, stream)


def server_address(data: bytes) -> None:
    """What a server says of where it listens."""
    try:
        text = parse_address(data, 0).text
    except ValueError as error:
        return expect(str(error).startswith("'0 HOST PORT LOCAL'"), "it says what was expected")
    expect(text.isascii() and text.isprintable() and text.startswith("0="), "it can be shown")
    expect("," not in text and " " not in text, "a list of addresses can be taken apart")


def failure_line(data: bytes) -> None:
    """What a rank says of its failure, as it is taken from its output and read."""

    def run(pieces: Iterable[bytes]) -> object:
        taken, rest, records = RecordFilter("tag"), b"", []
        for piece in pieces:
            left, found = taken.feed(piece)
            rest += left
            records += found
        return rest + taken.finish(), records

    _expect_alike(run, data)
    record = parse_record(data)
    if record is None:
        return
    shown = (record.type, record.code, record.operation, record.place)
    known = [progress.text for progress in (record.progress, *record.peer_progress) if progress]
    expect(all(text.isprintable() for text in (*shown, *known)), f"{record} can be shown")
    expect(all(0 <= rank <= 65535 for rank in record.ranks), "ranks that can be")
    expect(0 <= record.pid < 1 << 31 and 0 <= record.peer_pid < 1 << 31, "pids that can be")


def mpirun_output(data: bytes) -> None:
    """mpirun's --tag-output, and its messages."""

    for stream in (STDOUT, STDERR):

        def run(pieces: Iterable[bytes], stream: int = stream) -> object:
            tagged = TaggedStream(stream, _RANKS)
            written: dict[int, bytes] = defaultdict(bytes)
            lines: list[bytes] = []
            for found in (*map(tagged.feed, pieces), tagged.finish()):
                for rank, text in found[0]:
                    written[rank] += text
                lines += found[1]
            expect(all(0 <= rank < _RANKS for rank in written), "ranks of the job")
            return dict(written), lines

        _expect_alike(run, data)
    text = data.decode("utf-8", "replace")
    for rank, status in find_failures(text).items():
        expect(isinstance(rank, int) and isinstance(status, int), "numbers")
    find_improper(text)


def rank_lines(data: bytes) -> None:
    """Lines of a rank's output."""

    def run(pieces: Iterable[bytes]) -> object:
        splitter = LineSplitter()
        lines = [line for piece in pieces for line in splitter.feed(piece)]
        lines += splitter.finish()
        expect(b"".join(lines) in (data, data + b"\n"), "no byte is lost or added")
        return lines

    _expect_alike(run, data)


def build_report(data: bytes) -> None:
    """What another version of the core may say of itself."""
    try:
        format_build_report(data)
    except ValueError:
        return


def parents_variable(data: bytes) -> None:
    """The variable that a rank leaves to its children."""
    text = as_text(data).replace("\0", "")
    parents_record({"MYDIST_JOB_PARENT": text}, {})


_MAGIC = framing.MAGIC
_HELLO = framing.pack_json(
    framing.Kind.HELLO, {"python": "3", "free_port": 1, "ssh_connection": ""}
)
_NUMBERS = (
    b'{"rank": 1, "size": 2, "local_rank": 1, "local_size": 2, "cross_rank": 0, "cross_size": 1, '
    b'"is_homogeneous": true}'
)

TARGETS = (
    Target(
        "agent_frames",
        agent_frames,
        (
            b"\1Welcome!\r\n"
            + _MAGIC
            + _HELLO
            + framing.pack_numbers(framing.Kind.OUTPUT, 2, 1, data=b"text\n"),
            b"\0"
            + framing.pack_numbers(framing.Kind.STARTED, 1, 77)
            + framing.pack_numbers(framing.Kind.EXITED, 1, -9)
            + framing.pack_numbers(framing.Kind.ADDRESS, 2, data=b"0 127.0.0.1 4000 x")
            + framing.pack_json(framing.Kind.ERROR, {"text": "no such file", "exit_code": 127}),
        ),
    ),
    Target(
        "server_address",
        server_address,
        (b"0 127.0.0.1 4000 mydist-1", b"0 fe80::1%eth0 65535", b"0 a_b 1 "),
    ),
    Target(
        "failure_line",
        failure_line,
        (
            b'{"type": "PeerLostError", "code": "PEER_LOST", "ranks": [1], "operation": "allgather"'
            b', "tensor": "x", "pid": 7, "peer_pid": 8}',
            b'before\x1etag{"type": "ValueError"}\nafter\x1eta\x1etag{}\n',
            b'{"type": "PeerLostError", "ranks": [1, 2], "last": {"operation": "allreduce", '
            b'"tensor": "x", "number": 7, "ago": 0.5}, "peer_progress": [null, {"operation": '
            b'"allreduce", "tensor": "\\u001b", "number": 6, "age": 1.5}]}',
        ),
    ),
    Target(
        "mpirun_output",
        mpirun_output,
        (
            b"[1,0]<stdout>:a [1,1]<stdout>:b\nown\n[1,3]<stderr>:c\n[1,9]<stdout>:d",
            b"mpirun noticed that process rank 1 with PID 7 on node a exited on signal 9.\n",
            b"Process name: [[1,1],2]\nExit code:    3\n",
        ),
    ),
    Target("rank_lines", rank_lines, (b"a\r\nb\rc\n\r\r\nd", b"\r", b"10%\r20%\r30%\n")),
    Target(
        "build_report",
        build_report,
        (
            b'{"version": "0.1", "backends": [{"name": "mpi", "built": true, "available": false, '
            b'"reason": "x", "description": "y"}]}',
        ),
    ),
    Target(
        "parents_variable",
        parents_variable,
        (b'{"pid": 1, "numbers": ' + _NUMBERS + b', "launch": {"MYDIST_RANK": "1"}}', b"{}"),
    ),
)
