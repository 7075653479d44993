"""Output: bytes pass through, lines are prefixed and bounded, a bad consumer harms nobody."""

from __future__ import annotations

import datetime
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mydist.launcher.bounded_writer import BoundedWriter
from mydist.launcher.children import Children
from mydist.launcher.elastic.workers import Workers
from mydist.launcher.errors import LaunchError
from mydist.launcher.hosts import Host
from mydist.launcher.output import (
    MAX_LINE_BYTES,
    TAIL_LINE_COUNT,
    JobOutput,
    LineSplitter,
    OutputFiles,
)
from mydist.launcher.placement import place_ranks, place_servers


def children(ranks: int, servers: int = 0) -> Children:
    hosts = (Host("a", ranks),)
    return Children(place_ranks(hosts, ranks), place_servers(hosts, servers))


class Pipe:
    """A pipe and a BoundedWriter into it."""

    def __init__(self, **options: float) -> None:
        self.read_fd, self.write_fd = os.pipe()
        self.writer = BoundedWriter(self.write_fd, **options)  # type: ignore[arg-type]

    def close(self) -> None:
        for fd in (self.read_fd, self.write_fd):
            if fd >= 0:
                os.close(fd)

    def contents(self) -> bytes:
        """Everything written, after closing the write end."""
        assert self.writer.close()
        os.close(self.write_fd)
        self.write_fd = -1
        data = b""
        while piece := os.read(self.read_fd, 65536):
            data += piece
        return data


@pytest.fixture
def pipes() -> Iterator[tuple[Pipe, Pipe]]:
    both = (Pipe(), Pipe())
    yield both
    for pipe in both:
        pipe.close()


def test_lines_are_prefixed_by_rank_and_stream(pipes: tuple[Pipe, Pipe]) -> None:
    output = JobOutput(pipes[0].writer, pipes[1].writer)
    output.write(0, 1, b"one\ntw")
    output.write(1, 1, b"other\n")
    output.write(0, 1, b"o\nopen")
    output.write(1, 2, b"oops\n")
    output.finish(0)
    out = b"[0]<stdout>:one\n[1]<stdout>:other\n[0]<stdout>:two\n[0]<stdout>:open\n"
    assert pipes[0].contents() == out
    assert pipes[1].contents() == b"[1]<stderr>:oops\n"


def test_timestamps(pipes: tuple[Pipe, Pipe]) -> None:
    moment = datetime.datetime(2026, 1, 2, 3, 4, 5, 678901)
    output = JobOutput(pipes[0].writer, pipes[1].writer, timestamps=True, now=lambda: moment)
    output.write(3, 1, b"x\n")
    assert pipes[0].contents() == b"2026-01-02T03:04:05.678 [3]<stdout>:x\n"


def test_invalid_utf8_passes_through(pipes: tuple[Pipe, Pipe]) -> None:
    output = JobOutput(pipes[0].writer, pipes[1].writer)
    every_byte = bytes(range(256)).replace(b"\r", b"").replace(b"\n", b"")
    output.write(0, 1, every_byte + b"\n")
    output.write(0, 2, b"\xff\xfe broken \xc3\n")
    assert pipes[0].contents() == b"[0]<stdout>:" + every_byte + b"\n"
    assert pipes[1].contents() == b"[0]<stderr>:\xff\xfe broken \xc3\n"
    assert output.tail(0) == ["\\xff\\xfe broken \\xc3"]


def test_progress_bars_of_two_ranks(pipes: tuple[Pipe, Pipe]) -> None:
    output = JobOutput(pipes[0].writer, pipes[1].writer)
    output.write(0, 1, b"10%\r20%\r30%")
    output.write(1, 1, b"hello\r\n")
    output.write(0, 1, b"\n")
    expected = b"[0]<stdout>:10%\r[0]<stdout>:20%\r\n[1]<stdout>:hello\r\n[0]<stdout>:30%\n"
    assert pipes[0].contents() == expected


@pytest.mark.parametrize("chunk_bytes", [1, 7, 4096])
def test_splitting_does_not_depend_on_chunks(chunk_bytes: int) -> None:
    data = b"a\nbb\r\nccc\rdd\n\n\r\r\n end"
    splitter = LineSplitter()
    lines = []
    for at in range(0, len(data), chunk_bytes):
        lines += splitter.feed(data[at : at + chunk_bytes])
    lines += splitter.finish()
    expected = [b"a\n", b"bb\r\n", b"ccc\r", b"dd\n", b"\n", b"\r", b"\r\n", b" end\n"]
    assert lines == expected


def test_a_ten_megabyte_line_is_cut_not_kept() -> None:
    splitter = LineSplitter()
    lines = []
    for _ in range(160):
        lines += splitter.feed(b"x" * 65536)
    lines += splitter.feed(b"\n")
    assert [len(line) for line in lines] == [MAX_LINE_BYTES + 1] * 10
    assert b"".join(lines).count(b"x") == 10 << 20


def test_tail_is_bounded(pipes: tuple[Pipe, Pipe]) -> None:
    output = JobOutput(pipes[0].writer, pipes[1].writer)
    output.write(0, 2, b"".join(b"line %d\n" % n for n in range(1000)) + b"y" * 5000 + b"\n")
    tail = output.tail(0)
    assert len(tail) == TAIL_LINE_COUNT
    assert tail[-2] == "line 999"
    assert tail[-1] == "y" * 400


def test_closed_consumer_costs_only_its_output() -> None:
    pipe = Pipe()
    os.close(pipe.read_fd)
    pipe.read_fd = -1
    pipe.writer.push(b"x" * 100)
    pipe.writer.close()
    assert pipe.writer.dead
    assert not pipe.writer.push(b"more")
    assert pipe.writer.dropped_bytes == 104
    assert not pipe.writer.wants_pause()
    pipe.close()


def test_slow_consumer_is_waited_for_a_stuck_one_is_not() -> None:
    now = [0.0]
    read_fd, write_fd = os.pipe()
    writer = BoundedWriter(write_fd, limit_bytes=1 << 20, stall_seconds=5, clock=lambda: now[0])
    while not writer.wants_pause():
        assert writer.push(b"x" * 65536)
    now[0] = 4.9
    assert writer.wants_pause()
    now[0] = 1e6  # the pipe is full and nobody reads: no progress since
    while writer.wants_pause():
        assert os.read(read_fd, 1)  # only if the writer was still filling the pipe
    assert not writer.push(b"lost")
    assert writer.dropped_bytes == 4
    os.close(read_fd)
    writer.close()
    os.close(write_fd)


def test_everything_arrives_at_a_slow_consumer() -> None:
    pipe = Pipe(limit_bytes=1 << 16)
    received = bytearray()

    def consume() -> None:
        while piece := os.read(pipe.read_fd, 100):
            received.extend(piece)

    consumer = threading.Thread(target=consume)
    consumer.start()
    for number in range(5000):
        assert pipe.writer.push(b"%09d\n" % number)
    assert pipe.writer.close(timeout=30)
    os.close(pipe.write_fd)
    pipe.write_fd = -1
    consumer.join()
    assert bytes(received) == b"".join(b"%09d\n" % number for number in range(5000))
    pipe.close()


def test_files_hold_the_raw_bytes(tmp_path: Path, pipes: tuple[Pipe, Pipe]) -> None:
    output = JobOutput(pipes[0].writer, pipes[1].writer)
    output.attach_files(OutputFiles(tmp_path / "logs", children(11, servers=2)))
    output.write(3, 1, b"\xff raw")
    output.write(3, 2, b"err\n")
    output.write(12, 1, b"of a server\n")
    output.close()
    place = tmp_path / "logs" / "rank.03"
    assert (place / "stdout").read_bytes() == b"\xff raw"
    assert (place / "stderr").read_bytes() == b"err\n"
    assert stat.S_IMODE((place / "stdout").stat().st_mode) == 0o600
    assert stat.S_IMODE(place.stat().st_mode) == 0o700
    assert (tmp_path / "logs" / "rank.10" / "stdout").exists()
    assert (tmp_path / "logs" / "server.1" / "stdout").read_bytes() == b"of a server\n"


def test_full_disk_is_one_warning(pipes: tuple[Pipe, Pipe], tmp_path: Path) -> None:
    output = JobOutput(pipes[0].writer, pipes[1].writer)
    files = OutputFiles(tmp_path, children(1))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, files._files[0, 1])
    os.close(full)
    output.attach_files(files)
    output.write(0, 1, b"a\n")
    output.write(0, 1, b"b\n")
    output.close()
    assert pipes[0].contents() == b"[0]<stdout>:a\n[0]<stdout>:b\n"
    assert pipes[1].contents() == (
        b"mydistrun: cannot write the stdout file of rank 0: No space left on device; "
        b"the file ends here, the job continues\n"
    )


def test_output_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LaunchError, match=r"cannot create '.*rank\.0': Not a directory; give a"):
        OutputFiles(tmp_path / "file", children(1))


def test_a_child_without_files_leaves_those_of_others_open(tmp_path: Path) -> None:
    workers = Workers()
    workers.add(0, Host("a", 1), 0)
    files = OutputFiles(tmp_path, workers)
    workers.add(1, Host("a", 1), 1)
    (tmp_path / "worker.1").write_text("")
    with pytest.raises(LaunchError, match=r"cannot create '.*worker\.1': File exists; give a"):
        files.add(1)
    files.write(0, 1, b"a\n")
    files.close()
    assert (tmp_path / "worker.0" / "stdout").read_bytes() == b"a\n"


def test_a_link_in_the_output_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "rank.0").mkdir()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "rank.0" / "stdout").symlink_to(tmp_path / "victim")
    with pytest.raises(LaunchError, match="Too many levels of symbolic links"):
        OutputFiles(tmp_path, children(1))
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("has_reader", [False, True])
def test_a_named_pipe_in_the_output_directory_is_refused(tmp_path: Path, has_reader: bool) -> None:
    (tmp_path / "rank.0").mkdir()
    pipe = tmp_path / "rank.0" / "stdout"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK) if has_reader else -1
    reason = "its stdout is a named pipe" if has_reader else "No such device or address"
    with pytest.raises(LaunchError, match=rf"cannot create '.*rank\.0': {reason}; give a"):
        OutputFiles(tmp_path, children(1))
    if has_reader:
        os.close(reader)


def test_records_of_failures_are_taken_out_of_both_streams(pipes: tuple[Pipe, Pipe]) -> None:
    out, err = pipes
    output = JobOutput(out.writer, err.writer, failure_tag="0123")
    record = b'\x1e0123{"type": "OSError", "code": "", "ranks": []}\n'
    output.write(0, 1, b"before\n" + record + b"after\n")  # As with 2>&1.
    output.write(1, 2, record)
    for rank in (0, 1):
        failure = output.failure(rank)
        assert failure is not None and failure.type == "OSError"
        output.finish(rank)
    shown = out.contents()
    assert b"before" in shown and b"after" in shown
    assert b"OSError" not in shown + err.contents()


def test_what_a_rank_waits_in_is_no_failure_and_gets_old(
    pipes: tuple[Pipe, Pipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = pipes
    output = JobOutput(out.writer, err.writer, failure_tag="0123")
    record = b'\x1e0123{"type": "", "code": "WAITS", "operation": "allreduce", "tensor": "x"}\n'
    assert not output.write(1, 2, record)
    assert output.failure(1) is None and not output.has_complained(1)
    assert [(rank, waits.place) for rank, waits in output.waits().items()] == [(1, "allreduce 'x'")]
    output.write(1, 2, b"an error\n")
    assert output.has_complained(1)
    monkeypatch.setattr("mydist.launcher.output.WAITS_SECONDS", -1.0)
    assert output.waits() == {}


def test_what_a_rank_may_have_caught_ends_nothing_and_is_gone_when_it_has_recovered(
    pipes: tuple[Pipe, Pipe],
) -> None:
    out, err = pipes
    output = JobOutput(out.writer, err.writer, failure_tag="0123")
    record = b'\x1e0123{"type": "PeerLostError", "code": "PEER_LOST", "caught": true}\n'
    assert not output.write(1, 2, record)
    assert output.failure(1) is None and not output.has_complained(1)
    assert {rank: caught.type for rank, caught in output.caught().items()} == {1: "PeerLostError"}
    assert not output.write(1, 2, b'\x1e0123{"type": "", "code": "RECOVERED"}\n')
    assert output.caught() == {}
