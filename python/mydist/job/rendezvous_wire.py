"""The rendezvous protocol, version 1: what the bytes are. Big-endian throughout, over TCP.

The client of the ranks and the server of the launcher both speak it. So this module imports only
the standard library.

Handshake (nothing else is read before it succeeded):
    client → server   64 bytes: magic "MYDR", version u8 = 1, 3 zero bytes, job id (16 bytes),
                      8 zero bytes, client nonce (32 bytes)
    server → client   64 bytes: server nonce (32), HMAC-SHA256(key, "server" + transcript)
    client → server   32 bytes: HMAC-SHA256(key, "client" + transcript)
where transcript = client nonce + server nonce + job id. The labels differ, so that an answer
cannot be reflected; the server's nonce is fresh, so that it cannot be replayed. The job id is the
16 hex digits of MYDIST_JOB_ID as 8 bytes, padded with zeros to 16.

Then any number of requests, one at a time:
    EXCHANGE   kind u8 = 1, name length u8 (1…64), rank u32, size u32, timeout_ms u32,
               blob length u32 (≤ 16 MiB), name, blob
    answer     status u8: 0 = OK: count u32, then per rank in rank order length u32 and blob;
               1 = ERROR, 2 = TIMEOUT: length u32 (≤ 4096) and a text in UTF-8, that of TIMEOUT
               behind a line with the numbers of ranks that are missing, the first 16 of many
    MEMBER     kind u8 = 2, name length u8 = 0, worker u32, three u32 = 0: from here on both sides
               send frames, length u32 (≤ 64 KiB) and a JSON object; elastic jobs only
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MAGIC = b"MYDR"
VERSION = 1
KEY_BYTES = 32
NONCE_BYTES = 32
DIGEST_BYTES = 32
JOB_ID_BYTES = 16
MAX_NAME_BYTES = 64
MAX_BLOB_BYTES = 16 << 20
MAX_TEXT_BYTES = 4096
HANDSHAKE_SECONDS = 3.0
EXCHANGE = 1
MEMBER = 2
MAX_FRAME_BYTES = 1 << 16
MAX_WORKER = (1 << 32) - 1
STATUS_OK = 0
STATUS_ERROR = 1
STATUS_TIMEOUT = 2
HELLO = struct.Struct(f">4sB3x{JOB_ID_BYTES}s8x{NONCE_BYTES}s")
REQUEST = struct.Struct(">BBIIII")
LENGTH = struct.Struct(">I")


class ExchangeRequest(NamedTuple):
    """The fixed part of an EXCHANGE; name and blob follow it. `timeout_ms` counts from arrival."""

    name_bytes: int
    rank: int
    size: int
    timeout_ms: int
    blob_bytes: int


def pack_job_id(job_id: str) -> bytes:
    """MYDIST_JOB_ID as it stands in the handshake. Raises ValueError."""
    try:
        raw = bytes.fromhex(job_id)
    except ValueError:
        raw = b""
    if len(raw) != 8:
        raise ValueError(f"job id {job_id!r}: expected 16 hexadecimal digits")
    return raw.ljust(JOB_ID_BYTES, b"\0")


def pack_hello(job_id: bytes, nonce: bytes) -> bytes:
    """The client's first 64 bytes."""
    return HELLO.pack(MAGIC, VERSION, job_id, nonce)


def unpack_hello(data: bytes) -> tuple[bytes, bytes] | None:
    """Job id and client nonce, or None when the bytes are anything else."""
    magic, version, job_id, nonce = HELLO.unpack(data)
    if magic != MAGIC or version != VERSION or HELLO.pack(magic, version, job_id, nonce) != data:
        return None
    return job_id, nonce


def prove(key: bytes, role: str, transcript: bytes) -> bytes:
    """The proof that a side ("server" or "client") knows the key."""
    return hmac.new(key, role.encode() + transcript, hashlib.sha256).digest()


def verify(key: bytes, role: str, transcript: bytes, proof: bytes) -> bool:
    """Checks the other side's proof in constant time."""
    return hmac.compare_digest(prove(key, role, transcript), proof)


def pack_request(request: ExchangeRequest, name: bytes) -> bytes:
    """An EXCHANGE up to and including the name; the blob follows."""
    return REQUEST.pack(EXCHANGE, *request) + name


def unpack_request(data: bytes, max_size: int) -> ExchangeRequest:
    """Checks every field against its limit. Raises ValueError with a text for the client."""
    kind, *fields = REQUEST.unpack(data)
    request = ExchangeRequest(*fields)
    name_bytes, rank, size, _, blob_bytes = request
    if kind != EXCHANGE:
        raise ValueError(f"request of kind {kind}, expected {EXCHANGE}")
    if not 1 <= name_bytes <= MAX_NAME_BYTES:
        raise ValueError(f"round name of {name_bytes} bytes, expected 1 to {MAX_NAME_BYTES}")
    if not 1 <= size <= max_size:
        raise ValueError(f"size {size}, expected 1 to {max_size}")
    if rank >= size:
        raise ValueError(f"rank {rank} in a round of size {size}, expected 0 to {size - 1}")
    if blob_bytes > MAX_BLOB_BYTES:
        raise ValueError(f"blob of {blob_bytes} bytes, at most {MAX_BLOB_BYTES} are allowed")
    return request


def pack_text(status: int, text: str) -> bytes:
    """An ERROR or TIMEOUT answer."""
    raw = text.encode("utf-8", "replace")[:MAX_TEXT_BYTES]
    return bytes([status]) + LENGTH.pack(len(raw)) + raw


def pack_timeout(text: str, missing: Sequence[int]) -> bytes:
    """A TIMEOUT answer: the ranks that are missing in a line of their own, then the text."""
    return pack_text(STATUS_TIMEOUT, f"{' '.join(map(str, missing))}\n{text}")


def split_timeout(answer: str) -> tuple[str, list[int]]:
    """The text and the ranks of a TIMEOUT answer. It comes from a server that knows the key."""
    ranks, newline, text = answer.partition("\n")
    if not newline:
        return answer, []
    return text, [int(rank) for rank in ranks.split() if rank.isdecimal()]


def pack_member(worker: int) -> bytes:
    """What makes a connection that of a worker of an elastic job."""
    return REQUEST.pack(MEMBER, 0, worker, 0, 0, 0)


def unpack_member(data: bytes) -> int | None:
    """The worker, or None when the request is another one."""
    kind, _, worker, *_ = REQUEST.unpack(data)
    return int(worker) if kind == MEMBER and data == pack_member(worker) else None


def pack_frame(message: Mapping[str, Any]) -> bytes:
    """One message between a worker and the launcher. Raises ValueError when it is too long."""
    raw = json.dumps(message).encode("ascii")
    if len(raw) > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {len(raw)} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return LENGTH.pack(len(raw)) + raw


def frame_bytes(header: bytes) -> int:
    """How long the message behind this header is. Raises ValueError."""
    (length,) = LENGTH.unpack(header)
    if length > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {length} bytes, at most {MAX_FRAME_BYTES} are allowed")
    return int(length)


def unpack_frame(raw: bytes) -> dict[str, Any]:
    """The message. Raises ValueError."""
    try:
        message = json.loads(raw)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, got a {type(message).__name__}")
    return message
