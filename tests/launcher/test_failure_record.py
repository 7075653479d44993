"""What ranks say of their failures is taken out of their output, however it is cut."""

from __future__ import annotations

import json

import pytest

from mydist.launcher.failure_record import FailureRecord, Progress, RecordFilter, parse_record

TAG = "0123456789abcdef"
LINE = b"\x1e" + TAG.encode() + b'{"type": "PeerLostError", "code": "PEER_LOST", "ranks": [2], '
LINE += b'"operation": "allreduce", "tensor": "x", "pid": 7, "peer_pid": 8}\n'
NUMBERS = (b"pid", b"peer_pid")
NO_NUMBERS = (b"Infinity", b"-Infinity", b"NaN", b"1e999", b"-1", b"2.5", b"9" * 4000, b"9" * 5000)


def _feed(pieces: list[bytes]) -> tuple[bytes, list[bytes]]:
    records = RecordFilter(TAG)
    rest, found = b"", []
    for piece in pieces:
        shown, more = records.feed(piece)
        rest += shown
        found += more
    return rest + records.finish(), found


@pytest.mark.parametrize("size", [1, 2, 7, 30, 1000])
def test_a_record_is_found_wherever_the_stream_is_cut(size: int) -> None:
    stream = b"50 %" + LINE + b"Traceback\n\x1e0123 other\x1e\n" + LINE + b"end"
    rest, found = _feed([stream[at : at + size] for at in range(0, len(stream), size)])
    assert rest == b"50 %Traceback\n\x1e0123 other\x1e\nend"
    assert [parse_record(line) for line in found] == [
        FailureRecord("PeerLostError", "PEER_LOST", (2,), "allreduce", "x", 7, 8)
    ] * 2


def test_output_without_a_record_is_not_held_back() -> None:
    records = RecordFilter(TAG)
    assert records.feed(b"no newline yet") == (b"no newline yet", [])
    assert records.feed(b"\x1e01")[0] == b""  # It may become one,
    assert records.feed(b"x") == (b"\x1e01x", [])  # and did not.
    endless = b"\x1e" + TAG.encode() + b"x" * 70000
    assert records.feed(endless) == (endless, [])


@pytest.mark.parametrize(
    "line",
    [b"", b"{", b"[]", b"{}", b'{"type": "E", "ranks": 3}', b'{"type": "E", "ranks": ["a"]}']
    + [b'{"type": "E", "%s": %s}' % (name, value) for name in NUMBERS for value in NO_NUMBERS]
    + [b'{"type": "E", "ranks": [%s]}' % value for value in NO_NUMBERS]
    + [b'{"type": "E", "peer_pids": [%s]}' % value for value in NO_NUMBERS]
    + [b'{"type": "E", "last": {"number": %s}}' % value for value in NO_NUMBERS]
    + [b'{"type": "E", "last": [1]}', b'{"type": "E", "last": 3}']
    + [b'{"type": "E", "last": {"age": %s}}' % value for value in (b"-1", b"NaN", b"1e99", b'"1"')]
    + [b'{"type": "E", "peer_progress": %s}' % value for value in (b"3", b"[3]", b'["a"]')]
    + [b'{"type": "E", "more": ' + b"[" * 60000 + b"]" * 60000 + b"}"],
)
def test_what_is_no_record_is_ignored(line: bytes) -> None:
    assert parse_record(line) is None


def test_only_true_says_that_a_program_may_have_caught_it() -> None:
    for told, is_caught in ((b"true", True), (b"false", False), (b"1", False), (b"[]", False)):
        record = parse_record(b'{"type": "E", "caught": %s}' % told)
        assert record is not None and record.is_caught == is_caught


@pytest.mark.parametrize("shown", ["E\\ud800", "E\\n\\x1b[2J", "E" * 256])
def test_a_text_is_one_line_that_can_be_shown(shown: str) -> None:
    told = {"E" * 256: "E" * 60000, "E\\ud800": "E\ud800", "E\\n\\x1b[2J": "E\n\x1b[2J"}[shown]
    fields = dict.fromkeys(("type", "code", "operation", "tensor"), told)
    record = parse_record(json.dumps(fields).encode())
    assert record == FailureRecord(shown, shown, (), shown, told[:256])
    assert record.place == f"{shown} '{shown}'"


@pytest.mark.parametrize(
    ("told", "progress", "text"),
    [
        (b"{}", None, ""),
        (b'{"operation": "", "tensor": "", "number": 0}', Progress("", "", 0), "none"),
        (
            b'{"operation": "allreduce\\n", "tensor": "x\\n", "number": 12, "ago": 0.5}',
            Progress("allreduce\\n", "x\n", 12),
            "allreduce\\n 'x\\n', number 12",
        ),
        (
            b'{"operation": "send_receive", "tensor": "y"}',
            Progress("send_receive", "y", 0),
            "send_receive 'y'",
        ),
    ],
)
def test_what_a_rank_completed_last_is_understood(
    told: bytes, progress: Progress | None, text: str
) -> None:
    record = parse_record(b'{"type": "E", "last": %s}' % told)
    assert record == FailureRecord("E", progress=progress)
    assert (record.progress.text if record.progress else "") == text
