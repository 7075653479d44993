"""The client of the launcher's rendezvous: how the ranks of a job exchange their addresses.

One connection, used by one thread. Wire format and security: rendezvous_wire.py.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence

from . import rendezvous_wire as wire

_RETRY_SECONDS = 0.05
# The server answers a timed-out round itself; beyond this it is the server that is missing.
_SERVER_GRACE_SECONDS = 5.0


class RendezvousError(RuntimeError):
    """The rendezvous failed; the text says which rank or address is concerned and what to do.

    `missing`: the ranks that did not arrive in time, the first ones of many.
    """

    def __init__(self, text: str, missing: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.missing = tuple(missing)


def job_key(environment: Mapping[str, str]) -> bytes:
    """The key that mydistrun gave this process. Raises KeyError or RendezvousError."""
    text = environment["MYDIST_JOB_KEY_FD"]
    try:
        return os.pread(int(text), wire.KEY_BYTES, 0)
    except (OSError, ValueError):
        raise RendezvousError(
            f"this process has no job key: MYDIST_JOB_KEY_FD={text} is not open here. Only the "
            "rank itself calls init(), not a process that it has started. A program that starts "
            "the rank must leave this descriptor open"
        ) from None


class RendezvousClient:
    """An authenticated connection to the launcher at `address` (`host:port` or `[v6]:port`).

    `job_id` is MYDIST_JOB_ID, `key` the 32-byte job key, `timeout` in seconds bounds connecting and
    each exchange. Raises RendezvousError, also when the server does not know the key.
    """

    def __init__(self, address: str, job_id: str, key: bytes, timeout: float) -> None:
        self._address = address
        self._timeout = timeout
        if len(key) != wire.KEY_BYTES:
            raise RendezvousError(f"job key of {len(key)} bytes, expected {wire.KEY_BYTES}")
        try:
            packed_id = wire.pack_job_id(job_id)
        except ValueError as error:
            raise RendezvousError(str(error)) from None
        host, port = split_address(address)
        self._socket = self._connect(host, port)
        try:
            self._handshake(packed_id, key)
        except BaseException:
            self.close()
            raise

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], timeout: float) -> RendezvousClient:
        """Connects with what mydistrun gave this process. Raises RendezvousError."""
        try:
            address = environment["MYDIST_RENDEZVOUS"]
            job_id = environment["MYDIST_JOB_ID"]
            key = job_key(environment)
        except KeyError as error:
            raise RendezvousError(f"{error.args[0]} is not set; start with mydistrun") from None
        return cls(address, job_id, key, timeout)

    def exchange(self, round_name: str, rank: int, size: int, blob: bytes) -> list[bytes]:
        """Gives `blob` to all `size` ranks of the round and returns theirs, in rank order.

        Blocks until all have arrived. The name is at most 64 bytes of UTF-8, the blob at most
        16 MiB. Raises RendezvousError; on a timeout it names the ranks that did not arrive.
        """
        name = round_name.encode()
        if len(blob) > wire.MAX_BLOB_BYTES:
            raise RendezvousError(
                f"blob of {len(blob)} bytes, at most {wire.MAX_BLOB_BYTES} are allowed"
            )
        timeout = self._timeout
        timeout_ms = min(max(1, round(timeout * 1000)), 0xFFFFFFFF)
        request = wire.ExchangeRequest(len(name), rank, size, timeout_ms, len(blob))
        began = time.monotonic()
        deadline = began + timeout + _SERVER_GRACE_SECONDS
        try:
            self._socket.settimeout(timeout + _SERVER_GRACE_SECONDS)
            self._socket.sendall(wire.pack_request(request, name) + blob)
            return self._read_answer(size, deadline)
        except TimeoutError:
            self.close()
            raise RendezvousError(
                f"round {round_name!r}: no answer from {self._address} in "
                f"{time.monotonic() - began:.1f} s"
            ) from None
        except OSError as error:
            self.close()
            raise RendezvousError(
                f"round {round_name!r}: lost the launcher at {self._address}: "
                f"{error.strerror or error}; it ended or the network failed"
            ) from None

    def join(self, worker: int) -> socket.socket:
        """Makes this the connection of a worker of an elastic job; the caller owns the socket."""
        self._socket.sendall(wire.pack_member(worker))
        self._socket.settimeout(None)
        return self._socket

    def close(self) -> None:
        """Closes the connection. Idempotent."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def _connect(self, host: str, port: int) -> socket.socket:
        began = time.monotonic()
        while True:
            left = began + self._timeout - time.monotonic()
            try:
                return socket.create_connection((host, port), timeout=max(left, 0.001))
            except (OSError, UnicodeError) as error:  # UnicodeError: a name no resolver takes
                if not isinstance(error, ConnectionRefusedError) or left <= _RETRY_SECONDS:
                    reason = getattr(error, "strerror", None) or error
                    raise RendezvousError(
                        f"cannot reach the launcher at {self._address}: {reason} (gave up after "
                        f"{time.monotonic() - began:.1f} s); check the route to it and its firewall"
                    ) from None
            time.sleep(_RETRY_SECONDS)

    def _handshake(self, job_id: bytes, key: bytes) -> None:
        nonce = secrets.token_bytes(wire.NONCE_BYTES)
        deadline = time.monotonic() + min(self._timeout, 2 * wire.HANDSHAKE_SECONDS)
        try:
            self._socket.sendall(wire.pack_hello(job_id, nonce))
            answer = self._receive(wire.NONCE_BYTES + wire.DIGEST_BYTES, deadline)
            transcript = nonce + answer[: wire.NONCE_BYTES] + job_id
            if not wire.verify(key, "server", transcript, answer[wire.NONCE_BYTES :]):
                raise RendezvousError(
                    f"{self._address} does not know the key of this job; it belongs to another job"
                )
            self._socket.sendall(wire.prove(key, "client", transcript))
        except TimeoutError:
            raise RendezvousError(
                f"{self._address} did not complete the handshake in time; is it a mydistrun?"
            ) from None
        except OSError:
            raise RendezvousError(
                f"{self._address} refused the handshake: it is not the launcher of this job "
                f"(MYDIST_JOB_ID), or not a mydistrun"
            ) from None

    def _read_answer(self, size: int, deadline: float) -> list[bytes]:
        status = self._receive(1, deadline)[0]
        count = self._receive_length(deadline)
        if status in (wire.STATUS_ERROR, wire.STATUS_TIMEOUT):
            if count > wire.MAX_TEXT_BYTES:
                raise RendezvousError(f"{self._address} sent an error text of {count} bytes")
            text = self._receive(count, deadline).decode("utf-8", "replace")
            if status == wire.STATUS_ERROR:
                raise RendezvousError(text)
            raise RendezvousError(*wire.split_timeout(text))
        if status != wire.STATUS_OK or count != size:
            raise RendezvousError(
                f"{self._address} answered status {status} with {count} blobs, expected {size}"
            )
        blobs = []
        for rank in range(size):
            length = self._receive_length(deadline)
            if length > wire.MAX_BLOB_BYTES:
                raise RendezvousError(f"{self._address} sent {length} bytes for rank {rank}")
            blobs.append(self._receive(length, deadline))
        return blobs

    def _receive_length(self, deadline: float) -> int:
        return int(wire.LENGTH.unpack(self._receive(wire.LENGTH.size, deadline))[0])

    def _receive(self, byte_count: int, deadline: float) -> bytes:
        data = bytearray()
        while len(data) < byte_count:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            piece = self._socket.recv(min(byte_count - len(data), 1 << 20))
            if not piece:
                raise ConnectionResetError("it closed the connection")
            data += piece
        return bytes(data)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`. Raises RendezvousError."""
    host, colon, port = address.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise RendezvousError(f"address {address!r}: expected host:port or [v6]:port")
    return host, int(port)
