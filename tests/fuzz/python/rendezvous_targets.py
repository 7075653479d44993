"""The rendezvous: what clients and servers send each other."""

from __future__ import annotations

import time
from typing import Any

from fuzz.python.target import Target, as_text, expect
from mydist.job import rendezvous_wire as wire
from mydist.job.rendezvous_client import RendezvousClient, RendezvousError, split_address
from mydist.launcher.rendezvous_round import RoundError, RoundTable

_SIZE = 4


def requests(data: bytes) -> None:
    """A handshake, then requests as the server takes them, of any number of clients."""
    hello, data = data[: wire.HELLO.size], data[wire.HELLO.size :]
    if len(hello) == wire.HELLO.size:
        found = wire.unpack_hello(hello)
        expect(found is None or wire.pack_hello(*found) == hello, "a hello survives")
    rounds: RoundTable[object] = RoundTable()
    while len(data) >= wire.REQUEST.size:
        header, data = data[: wire.REQUEST.size], data[wire.REQUEST.size :]
        try:
            request = wire.unpack_request(header, _SIZE)
        except ValueError as error:
            expect(
                len(wire.pack_text(wire.STATUS_ERROR, str(error))) <= 5 + wire.MAX_TEXT_BYTES, ""
            )
            return
        expect(0 <= request.rank < request.size <= _SIZE, "a rank of a round")
        name, data = data[: request.name_bytes], data[request.name_bytes :]
        expect(wire.pack_request(request, name) == header + name, "a request survives")
        blob, data = data[: request.blob_bytes], data[request.blob_bytes :]
        try:
            rounds.reserve(request.blob_bytes)
            opened = rounds.arrive(
                name.decode("utf-8", "replace"), request.rank, request.size, (blob, None)
            )
        except RoundError as error:
            wire.pack_text(wire.STATUS_ERROR, str(error))
            continue
        if len(opened.arrived) == opened.size:
            expect(len(opened.blobs()) == opened.size, "a blob of each rank")
        else:
            expect(request.rank not in opened.missing(), "who has arrived is not missing")
            answer = wire.pack_timeout(opened.describe_missing(), opened.missing())
            text = answer[5:].decode("utf-8", "replace")
            expect(wire.split_timeout(text)[1] == opened.missing(), "the ranks survive")


class _Socket:
    """A server that has said all it says, in pieces."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def settimeout(self, seconds: float) -> None:
        expect(seconds > 0, "a time that has not passed")

    def recv(self, most: int) -> bytes:
        piece, self.data = self.data[: min(most, 100)], self.data[min(most, 100) :]
        return piece


def answer(data: bytes) -> None:
    """What a client makes of an answer."""
    client: Any = RendezvousClient.__new__(RendezvousClient)
    client._address = "host:1"
    client._socket = _Socket(data)
    try:
        blobs = client._read_answer(_SIZE, time.monotonic() + 60)
    except (RendezvousError, ConnectionResetError):
        return
    expect(len(blobs) == _SIZE, "a blob of each rank")
    packed = bytes([wire.STATUS_OK]) + wire.LENGTH.pack(_SIZE)
    packed += b"".join(wire.LENGTH.pack(len(blob)) + blob for blob in blobs)
    expect(packed + client._socket.data == data, "an answer survives")


def address(data: bytes) -> None:
    """MYDIST_RENDEZVOUS and MYDIST_JOB_ID, with a null byte between them."""
    place, _, job_id = as_text(data).partition("\0")
    try:
        host, port = split_address(place)
        expect(bool(host) and 0 <= port <= 65535, "a host and a port")
    except RendezvousError:
        pass
    try:
        packed = wire.pack_job_id(job_id)
        expect(len(packed) == wire.JOB_ID_BYTES, "as long as the handshake has it")
    except ValueError:
        pass


def _request(name: bytes, rank: int, blob: bytes) -> bytes:
    fixed = wire.ExchangeRequest(len(name), rank, _SIZE, 1000, len(blob))
    return wire.pack_request(fixed, name) + blob


_JOB = wire.pack_job_id("0123456789abcdef")
TARGETS = (
    Target(
        "rendezvous_requests",
        requests,
        (
            wire.pack_hello(_JOB, bytes(range(32)))
            + b"".join(_request(b"meet", rank, b"blob") for rank in range(_SIZE)),
            bytes(wire.HELLO.size) + _request(b"a", 0, b"") + _request(b"a", 0, b"twice"),
        ),
    ),
    Target(
        "rendezvous_answer",
        answer,
        (
            bytes([wire.STATUS_OK])
            + wire.LENGTH.pack(_SIZE)
            + b"".join(wire.LENGTH.pack(rank) + bytes(rank) for rank in range(_SIZE)),
            wire.pack_text(wire.STATUS_ERROR, "no such round"),
            wire.pack_timeout("ranks 1, 3 did not arrive", [1, 3]),
        ),
    ),
    Target(
        "rendezvous_address",
        address,
        (b"host:29500\x000123456789abcdef", b"[fd00::7]:1\0", b":1", b"a:b"),
    ),
)
