"""Frames between launcher and agent over the pipes of ssh: u32 length, u8 kind, payload.

Both directions, big-endian; the length counts kind and payload and is checked before anything is
allocated. The agent's stream starts with MAGIC, so that noise of a login shell before it is
skipped. JSON payloads carry strings with surrogate escapes, so any byte of argv or environment
arrives unchanged.
"""

from __future__ import annotations

import enum
import json
import struct
from collections.abc import Iterator
from typing import Any

MAGIC = b"\n\x00mydist-agent-1\n"
MAX_FRAME_BYTES = 64 << 20
MAX_NOISE_BYTES = 1 << 16
_LENGTH = struct.Struct(">I")


class Kind(enum.IntEnum):
    """What a frame carries; the comment names its sender."""

    HELLO = 1  # agent: JSON, see Agent.run()
    JOB = 2  # launcher: JSON, see RemoteHost.start(); another one has more children
    STARTED = 3  # agent: child u32, pid as i32
    OUTPUT = 4  # agent: child u32, stream u8, bytes
    EXITED = 5  # agent: child u32, status i32
    ERROR = 6  # agent: JSON {text, exit_code}
    SIGNAL = 7  # launcher: signal number u8, to the children from u32 up to u32 (not included)
    PING = 8  # launcher: nothing; says "still there"
    ENDED = 9  # launcher: child u32 of another host, status i32
    ADDRESS = 10  # agent: child u32, what that server has reported


class FrameError(RuntimeError):
    """The peer sent something that is no frame."""


# The numbers in front of a payload; bytes follow them in kinds of _WITH_BYTES only.
_NUMBERS = {
    Kind.STARTED: struct.Struct(">Ii"),
    Kind.OUTPUT: struct.Struct(">IB"),
    Kind.EXITED: struct.Struct(">Ii"),
    Kind.SIGNAL: struct.Struct(">BII"),
    Kind.ENDED: struct.Struct(">Ii"),
    Kind.ADDRESS: struct.Struct(">I"),
}
_WITH_BYTES = (Kind.OUTPUT, Kind.ADDRESS)


def pack(kind: Kind, payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    return _LENGTH.pack(1 + len(payload)) + bytes([kind]) + payload


def pack_numbers(kind: Kind, *numbers: int, data: bytes = b"") -> bytes:
    """One frame of a kind that has numbers, as Kind says, and the bytes behind them."""
    return pack(kind, _NUMBERS[kind].pack(*numbers) + data)


def unpack_numbers(kind: Kind, payload: bytes) -> tuple[Any, ...]:
    """What pack_numbers() was given, bytes last if the kind has some. Raises FrameError."""
    form = _NUMBERS[kind]
    if len(payload) < form.size or (len(payload) > form.size and kind not in _WITH_BYTES):
        raise FrameError(f"{kind.name} frame of {len(payload)} bytes, expected {form.size}")
    numbers = form.unpack_from(payload)
    if kind == Kind.OUTPUT and numbers[1] not in (1, 2):
        raise FrameError(f"OUTPUT frame for stream {numbers[1]}, expected 1 or 2")
    return (*numbers, payload[form.size :]) if kind in _WITH_BYTES else numbers


def pack_json(kind: Kind, value: object) -> bytes:
    """One frame with a JSON payload."""
    return pack(kind, json.dumps(value, ensure_ascii=True).encode("ascii"))


def unpack_json(payload: bytes) -> dict[str, Any]:
    """The JSON object of a payload. Raises FrameError."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"malformed JSON in a frame: {error}") from None
    if not isinstance(value, dict):
        raise FrameError(f"expected a JSON object in a frame, got a {type(value).__name__}")
    return value


def number_in(value: dict[str, Any], name: str, most: int, default: int = 0) -> int:
    """A number from 0 to `most` of a JSON object. Raises FrameError; JSON also has `Infinity`."""
    number = value.get(name, default)
    if not isinstance(number, int) or not 0 <= number <= most:
        raise FrameError(f"{name} is {str(number)[:40]}, expected an integer from 0 to {most}")
    return number


class FrameReader:
    """Cuts a byte stream into frames; with `expect_magic` it first skips noise up to MAGIC."""

    def __init__(self, expect_magic: bool = False) -> None:
        self._buffer = bytearray()
        self._waiting_for_magic = expect_magic

    def feed(self, data: bytes) -> Iterator[tuple[Kind, bytes]]:
        """Takes more bytes, yields the frames now complete. Raises FrameError."""
        self._buffer += data
        if self._waiting_for_magic and not self._skip_noise():
            return
        while len(self._buffer) > _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if not 1 <= length <= MAX_FRAME_BYTES:
                raise FrameError(f"frame of {length} bytes, at most {MAX_FRAME_BYTES} are allowed")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            kind, payload = self._buffer[_LENGTH.size], bytes(self._buffer[_LENGTH.size + 1 : end])
            del self._buffer[:end]
            if kind not in Kind.__members__.values():
                raise FrameError(f"frame of unknown kind {kind}")
            yield Kind(kind), payload

    def _skip_noise(self) -> bool:
        at = self._buffer.find(MAGIC)
        if at < 0:
            if len(self._buffer) > MAX_NOISE_BYTES:
                raise FrameError("the remote login shell prints too much before the agent starts")
            return False
        del self._buffer[: at + len(MAGIC)]
        self._waiting_for_magic = False
        return True
