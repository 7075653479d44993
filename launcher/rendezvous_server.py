"""The launcher's rendezvous server: where ranks find each other.

The wire format is in mydist.job.rendezvous_wire, beside the client.
One thread with one event loop, made by start() and ended by stop(); nothing it does can reach the
job but the answers. A client that does not prove the job key within three seconds is
dropped and counted; it has had no more memory than the 96 bytes of the handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

import mydist.job.rendezvous_wire as wire
from mydist.launcher.errors import LaunchError, is_limit, start_error, start_thread
from mydist.launcher.rendezvous_round import MAX_LISTED_RANKS, Round, RoundError, RoundTable

# Beyond this many strangers at a time the oldest is dropped, so that a flood cannot lock out ranks.
MAX_STRANGERS = 256
Waiter = asyncio.Future[None]


class MemberEvents(Protocol):
    """Receives what the workers of an elastic job say, on the server's thread."""

    def on_message(self, worker: int, message: dict[str, Any]) -> None: ...


class RendezvousServer:
    """Serves the rounds of one job of `size` ranks. `log` is called from the server's thread.

    With `members` it also takes the connections of workers of an elastic job.
    """

    def __init__(
        self,
        job_id: str,
        key: bytes,
        size: int,
        log: Callable[[str], None] = lambda text: None,
        handshake_seconds: float = wire.HANDSHAKE_SECONDS,
        members: MemberEvents | None = None,
    ) -> None:
        self._job_id = wire.pack_job_id(job_id)
        self._key = key
        self._size = size
        self._log = log
        self._handshake_seconds = handshake_seconds
        self._members = members
        self._member_writers: dict[int, asyncio.StreamWriter] = {}
        self._rounds: RoundTable[Waiter] = RoundTable()
        self._strangers: dict[asyncio.Task[None], None] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused_count = 0
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._listeners: list[socket.socket] = []

    def start(self, addresses: Sequence[str]) -> dict[str, int]:
        """Listens on a free port of each address; returns address → port. Raises LaunchError.

        May be called again, with further addresses.
        """
        bound: list[tuple[str, socket.socket]] = []
        try:
            for address in addresses:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                listener = socket.socket(family, socket.SOCK_STREAM)
                bound.append((address, listener))
                listener.bind(socket.getaddrinfo(address, 0, family, socket.SOCK_STREAM)[0][4])
                listener.listen(1024)
        except OSError as error:
            for _, listener in bound:
                listener.close()
            if is_limit(error):
                raise start_error("the rendezvous", error) from None
            raise LaunchError(
                f"cannot listen on {address}: {error.strerror}; choose an interface of this "
                f"machine with --network-interfaces"
            ) from None
        ports = {address: int(listener.getsockname()[1]) for address, listener in bound}
        self._listeners += [listener for _, listener in bound]
        if self._thread is None:
            thread = threading.Thread(
                target=self._loop.run_forever, name="mydistrun-rendezvous", daemon=True
            )
            start_thread(thread)
            self._thread = thread
        for _, listener in bound:
            listener.setblocking(False)
            self._loop.call_soon_threadsafe(self._listen, listener)
        return ports

    def _listen(self, listener: socket.socket) -> None:
        self._spawn(self._accept(listener))

    def send(self, worker: int, message: dict[str, Any]) -> None:
        """Sends a worker of an elastic job a message, if it is connected. From any thread."""
        frame = wire.pack_frame(message)

        def write() -> None:
            if (writer := self._member_writers.get(worker)) is not None:
                writer.write(frame)

        self._loop.call_soon_threadsafe(write)

    def end_rounds(self, prefix: str, why: str) -> None:
        """Rounds whose names begin so fail, open ones at once. From any thread."""

        def end() -> None:
            for waiter in self._rounds.end(prefix, why):
                if not waiter.done():
                    waiter.set_exception(RoundError(why))

        self._loop.call_soon_threadsafe(end)

    def stop(self) -> None:
        """Drops every connection and ends the thread. Idempotent; blocks for milliseconds."""
        if self._thread is not None:
            asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._thread = None
        for listener in self._listeners:
            listener.close()
        if not self._loop.is_closed():
            self._loop.close()

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _cancel_all(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(listener)
            except OSError:  # out of descriptors for now, or the peer left already
                await asyncio.sleep(0.05)
                continue
            self._strangers[self._spawn(self._serve(connection))] = None
            await asyncio.sleep(0)  # a task cancelled before its first step would not close it
            if len(self._strangers) > MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                oldest.cancel()

    async def _serve(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            refusal: str | None = "replaced by newer connections"
            try:
                refusal = await self._authenticate(connection)
            finally:
                self._strangers.pop(task, None)
                if refusal is not None:
                    self._count_refusal(connection, refusal)
            if refusal is None:
                await self._serve_rank(connection)
        except (OSError, asyncio.IncompleteReadError):
            pass  # it went away; a rank that dies is the launcher's business, not ours
        finally:
            connection.close()

    async def _authenticate(self, connection: socket.socket) -> str | None:
        """None for a rank of this job, else why the connection is refused. Reads at most 96 bytes,
        straight from the socket, so that an unknown client cannot make the server buffer more."""
        try:
            async with asyncio.timeout(self._handshake_seconds):
                hello = wire.unpack_hello(await self._receive(connection, wire.HELLO.size))
                if hello is None or hello[0] != self._job_id:
                    return "it belongs to another job"
                nonce = secrets.token_bytes(wire.NONCE_BYTES)
                transcript = hello[1] + nonce + self._job_id
                proof = wire.prove(self._key, "server", transcript)
                await self._loop.sock_sendall(connection, nonce + proof)
                answer = await self._receive(connection, wire.DIGEST_BYTES)
                return None if wire.verify(self._key, "client", transcript, answer) else "wrong key"
        except TimeoutError:
            return "it did not prove the key in time"
        except OSError:
            return "it closed during the handshake"

    async def _receive(self, connection: socket.socket, byte_count: int) -> bytes:
        data = b""
        while len(data) < byte_count:
            piece = await self._loop.sock_recv(connection, byte_count - len(data))
            if not piece:
                raise ConnectionResetError
            data += piece
        return data

    def _count_refusal(self, connection: socket.socket, reason: str) -> None:
        self._refused_count += 1
        count = self._refused_count
        if count & (count - 1) == 0:  # 1, 2, 4, 8, …: a scanner does not fill the log
            peer = "?"
            with contextlib.suppress(OSError):
                peer = connection.getpeername()[0]
            self._log(f"rendezvous: dropped connection {count} from {peer}: {reason}")

    async def _serve_rank(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader, writer = await asyncio.open_connection(sock=connection, limit=1 << 20)
        try:
            while await self._answer(reader, writer):
                pass
        finally:
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Serves one request. False when the connection is to be closed."""
        reserved_bytes = 0
        try:
            header = await reader.readexactly(wire.REQUEST.size)
            if self._members is not None and (worker := wire.unpack_member(header)) is not None:
                await self._serve_member(worker, reader, writer)
                return False
            request = wire.unpack_request(header, self._size)
        except asyncio.IncompleteReadError:
            return False
        except ValueError as error:  # the length of what follows cannot be trusted either
            await self._send(writer, wire.pack_text(wire.STATUS_ERROR, str(error)))
            return False
        try:
            name = (await reader.readexactly(request.name_bytes)).decode("utf-8", "replace")
            self._rounds.reserve(request.blob_bytes)
            reserved_bytes = request.blob_bytes
            blob = await reader.readexactly(request.blob_bytes)
            await self._send_all(writer, await self._exchange(reader, name, request, blob))
        except RoundError as error:
            await self._send(writer, wire.pack_text(wire.STATUS_ERROR, str(error)))
            return reserved_bytes == request.blob_bytes
        finally:
            self._rounds.unreserve(reserved_bytes)
        return True

    async def _serve_member(
        self, worker: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        """Passes its messages on until the connection ends."""
        assert self._members is not None
        self._member_writers[worker] = writer
        try:
            while True:
                length = wire.frame_bytes(await reader.readexactly(wire.LENGTH.size))
                message = wire.unpack_frame(await reader.readexactly(length))
                self._members.on_message(worker, message)
        finally:
            if self._member_writers.get(worker) is writer:
                del self._member_writers[worker]

    async def _exchange(
        self,
        reader: asyncio.StreamReader,
        name: str,
        request: wire.ExchangeRequest,
        blob: bytes,
    ) -> list[bytes]:
        """Waits for the round; returns the parts of the answer."""
        complete: Waiter = self._loop.create_future()
        opened = self._rounds.arrive(name, request.rank, request.size, (blob, complete))
        if len(opened.arrived) == opened.size:
            for _, waiter in opened.arrived.values():
                if not waiter.done():
                    waiter.set_result(None)
        # A waiting client sends nothing, so anything readable is its end (or a breach of protocol).
        gone = asyncio.ensure_future(reader.read(1))
        timeout_seconds = request.timeout_ms / 1000
        timed_out = False
        try:
            waited: set[asyncio.Future[Any]] = {complete, gone}
            await asyncio.wait(waited, timeout=timeout_seconds, return_when=asyncio.FIRST_COMPLETED)
            if gone.done():
                raise ConnectionResetError("the client left while waiting")
            if complete.done():
                complete.result()
                return _pack_blobs(opened)
            timed_out = True
            missing = opened.describe_missing()
            text = f"round {name!r}: {missing} did not arrive within {timeout_seconds:g} s"
            return [wire.pack_timeout(text, opened.missing()[:MAX_LISTED_RANKS])]
        finally:
            self._rounds.withdraw(opened, request.rank, timed_out)
            gone.cancel()
            await asyncio.wait({gone})

    async def _send(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        writer.write(data)
        await writer.drain()

    async def _send_all(self, writer: asyncio.StreamWriter, parts: list[bytes]) -> None:
        for part in parts:
            await self._send(writer, part)  # part by part: a slow reader buffers one at a time


def _pack_blobs(opened: Round[Waiter]) -> list[bytes]:
    parts = [bytes([wire.STATUS_OK]) + wire.LENGTH.pack(opened.size)]
    for blob in opened.blobs():
        parts += [wire.LENGTH.pack(len(blob)), blob]
    return parts
