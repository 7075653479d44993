"""The rendezvous: rounds among real clients, and everybody who is not one."""

from __future__ import annotations

import contextlib
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

import pytest
from soon import soon

from mydist.job import rendezvous_wire as wire
from mydist.job.rendezvous_client import RendezvousClient, RendezvousError, split_address
from mydist.launcher.rendezvous_round import MAX_OPEN_ROUNDS, RoundError, RoundTable
from mydist.launcher.rendezvous_server import MAX_STRANGERS, RendezvousServer

SIZE = 4
JOB = "0123456789abcdef"
KEY = bytes(range(32))
HELLO_NONCE = b"n" * 32


class Service:
    """A running server, its address, and what it logged."""

    def __init__(self, handshake_seconds: float = 10.0) -> None:
        self.logged = threading.Condition()
        self.log: list[str] = []
        self.server = RendezvousServer(JOB, KEY, SIZE, self._log, handshake_seconds)
        self.port = self.server.start(["127.0.0.1"])["127.0.0.1"]
        self.address = f"127.0.0.1:{self.port}"

    def _log(self, text: str) -> None:
        with self.logged:
            self.log.append(text)
            self.logged.notify_all()

    def wait_log(self, wanted: str) -> str:
        with self.logged:
            assert self.logged.wait_for(lambda: any(wanted in text for text in self.log), 10)
        return next(text for text in self.log if wanted in text)

    def client(self, exchange_timeout: float = 10.0) -> contextlib.closing[RendezvousClient]:
        """One that has as long as any other to connect."""
        client = RendezvousClient(self.address, JOB, KEY, 10.0)
        client._timeout = exchange_timeout
        return contextlib.closing(client)

    def stranger(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
        return connection

    def still_works(self) -> None:
        """The job is unharmed: a full round of real clients completes."""
        name = secrets.token_hex(4)

        def one(rank: int) -> list[bytes]:
            with self.client() as client:
                return client.exchange(name, rank, SIZE, b"%d" % rank)

        with ThreadPoolExecutor(SIZE) as pool:
            for blobs in pool.map(one, range(SIZE)):
                assert blobs == [b"0", b"1", b"2", b"3"]


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.server.stop()


def received_to_end(connection: socket.socket) -> bytes:
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def prove_as_client(connection: socket.socket, key: bytes = KEY) -> None:
    job_id = wire.pack_job_id(JOB)
    connection.sendall(wire.pack_hello(job_id, HELLO_NONCE))
    answer = connection.recv(64, socket.MSG_WAITALL)
    connection.sendall(wire.prove(key, "client", HELLO_NONCE + answer[:32] + job_id))


def test_concurrent_rounds_of_all_sizes(service: Service) -> None:
    def one(rank: int) -> None:
        with service.client() as client:
            for number in range(50):
                blob = bytes([rank]) * (number * 1000)
                got = client.exchange(f"round {number}", rank, SIZE, blob)
                assert got == [bytes([other]) * (number * 1000) for other in range(SIZE)]
            if rank < 2:
                assert client.exchange("half", rank, 2, b"x") == [b"x", b"x"]
            if rank == 3:
                assert client.exchange("alone", 0, 1, b"me") == [b"me"]

    with ThreadPoolExecutor(SIZE) as pool:
        list(pool.map(one, range(SIZE)))
    assert service.log == []


def test_the_largest_blob(service: Service) -> None:
    blob = secrets.token_bytes(wire.MAX_BLOB_BYTES)
    with service.client() as client:
        assert client.exchange("big", 0, 1, blob) == [blob]
        with pytest.raises(RendezvousError, match="blob of 16777217 bytes, at most 16777216"):
            client.exchange("bigger", 0, 1, blob + b"x")


def test_timeout_names_the_missing_ranks(service: Service) -> None:
    with service.client(0.2) as client:
        text = r"round 'late': ranks 0, 2, 3 \(3 of 4\) did not arrive within 0.2 s"
        with pytest.raises(RendezvousError, match=text) as caught:
            client.exchange("late", 1, SIZE, b"")
        assert caught.value.missing == (0, 2, 3)
        # the one who gave up does not block the name
        with pytest.raises(RendezvousError, match=r"ranks 0, 2, 3 \(3 of 4\)"):
            client.exchange("late", 1, SIZE, b"")
    service.still_works()


def test_a_rank_that_gave_up_first_is_not_missing(service: Service) -> None:
    """Ranks 1 and 3 have arrived; 1 waits for a shorter time."""

    def exchange(rank: int, seconds: float) -> RendezvousError:
        with service.client(seconds) as client, pytest.raises(RendezvousError) as caught:
            client.exchange("stopped", rank, SIZE, b"")
        return caught.value

    with ThreadPoolExecutor(2) as pool:
        second = pool.submit(exchange, 3, 1.0)
        first = pool.submit(exchange, 1, 0.3).result()
        assert not second.done()  # Else the round has ended, and this shows nothing.
        for error in (first, second.result()):
            # On a busy machine 3 may arrive after 1 has given up, and then 1 blames it as well.
            assert error.missing in ((0, 2), (0, 2, 3)), error
        assert second.result().missing == (0, 2)
        assert "ranks 0, 2 (2 of 4) did not arrive" in str(second.result())
    with service.client(0.2) as client, pytest.raises(RendezvousError) as caught:
        client.exchange("stopped", 1, SIZE, b"")
    assert caught.value.missing == (0, 2, 3)  # A new round.


def test_when_all_have_been_there_those_that_gave_up_are_missing() -> None:
    rounds: RoundTable[None] = RoundTable()
    opened = rounds.arrive("r", 0, 3, (b"", None))
    rounds.arrive("r", 1, 3, (b"", None))
    rounds.withdraw(opened, 1, timed_out=True)
    assert opened.missing() == [2]
    rounds.arrive("r", 2, 3, (b"", None))
    assert opened.describe_missing() == "rank 1 (1 of 3)"
    rounds.withdraw(opened, 2)  # Its client has gone, so it counts as one that never came.
    assert opened.missing() == [2]


CONTRADICTIONS = [
    ((0, 2), (0, 2), "rank 0 has already arrived: two processes have this rank number"),
    ((0, 2), (0, 3), "all ranks must agree on the size"),
]


@pytest.mark.parametrize(("one", "other", "text"), CONTRADICTIONS)
def test_contradicting_requests(
    service: Service, one: tuple[int, int], other: tuple[int, int], text: str
) -> None:
    with service.client() as first, service.client() as second, ThreadPoolExecutor(4) as pool:
        calls = [
            pool.submit(client.exchange, "r", rank, size, b"a")
            for client, (rank, size) in ((first, one), (second, other))
        ]
        refused = wait(calls, timeout=10, return_when=FIRST_COMPLETED).done.pop()
        with pytest.raises(RendezvousError, match=text):
            refused.result()
        accepted = calls[1 - calls.index(refused)]
        size = (one, other)[calls.index(accepted)][1]
        others = [pool.submit(exchange_once, service, rank, size) for rank in range(1, size)]
        assert all(call.result(10) == [b"a"] * size for call in [accepted, *others])


def test_a_process_that_comes_late_as_a_rank_that_has_been_there(service: Service) -> None:
    """Such as the parent of a child that has called init() before it."""
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(exchange_once, service, rank, 2) for rank in range(2)]
        assert all(call.result(10) == [b"a", b"a"] for call in both)
    with pytest.raises(RendezvousError, match="Another process of this rank has called init"):
        exchange_once(service, 1, 2)


def exchange_once(service: Service, rank: int, size: int) -> list[bytes]:
    with service.client() as client:
        return client.exchange("r", rank, size, b"a")


def test_a_client_that_leaves_is_withdrawn(service: Service) -> None:
    gone = service.stranger()
    prove_as_client(gone)
    gone.sendall(wire.pack_request(wire.ExchangeRequest(4, 0, 2, 60000, 3), b"left") + b"old")
    gone.close()
    for _ in range(1000):  # as long as the server has not noticed
        with service.client(0.05) as client, pytest.raises(RendezvousError) as caught:
            client.exchange("left", 0, 2, b"new")
        if "already arrived" not in str(caught.value):
            break
    assert "round 'left': rank 1 (1 of 2) did not arrive" in str(caught.value)


def test_wrong_key_on_the_client(service: Service) -> None:
    with pytest.raises(RendezvousError, match="does not know the key of this job"):
        RendezvousClient(service.address, JOB, bytes(32), 5)
    service.still_works()


def test_wrong_key_against_the_server(service: Service) -> None:
    with service.stranger() as connection:
        prove_as_client(connection, key=bytes(32))
        assert received_to_end(connection) == b""
    assert "dropped connection 1 from 127.0.0.1: wrong key" in service.wait_log("wrong key")
    service.still_works()


def test_older_job_is_refused(service: Service) -> None:
    text = f"{service.address} refused the handshake: it is not the launcher of this job"
    with soon(), pytest.raises(RendezvousError, match=re.escape(text)):
        RendezvousClient(service.address, "f" * 16, KEY, 5)
    service.wait_log("dropped connection 1 from 127.0.0.1: it belongs to another job")


def test_replayed_proof_is_refused(service: Service) -> None:
    job_id = wire.pack_job_id(JOB)
    with service.stranger() as first:
        first.sendall(wire.pack_hello(job_id, HELLO_NONCE))
        answer = first.recv(64, socket.MSG_WAITALL)
        recorded = wire.prove(KEY, "client", HELLO_NONCE + answer[:32] + job_id)
        first.sendall(recorded)
    with service.stranger() as second:
        second.sendall(wire.pack_hello(job_id, HELLO_NONCE))
        assert second.recv(64, socket.MSG_WAITALL) != answer
        second.sendall(recorded)
        assert received_to_end(second) == b""
    service.wait_log("wrong key")


def test_reflected_proof_is_refused(service: Service) -> None:
    with service.stranger() as connection:
        connection.sendall(wire.pack_hello(wire.pack_job_id(JOB), HELLO_NONCE))
        answer = connection.recv(64, socket.MSG_WAITALL)
        connection.sendall(answer[32:])
        assert received_to_end(connection) == b""
    service.wait_log("wrong key")


@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" * 3, bytes(64), b"\xff" * 200, b"MYDR\x02" + bytes(59),
     b"MYDR\x01\x01" + bytes(58)],
)  # fmt: skip
def test_garbage_is_dropped_unparsed(service: Service, garbage: bytes) -> None:
    with service.stranger() as connection:
        connection.sendall(garbage)
        assert received_to_end(connection) == b""
    service.wait_log("it belongs to another job")
    service.still_works()


def test_random_bytes_never_harm(service: Service) -> None:
    source = secrets.SystemRandom()
    for _ in range(200):
        with service.stranger() as connection:
            connection.sendall(secrets.token_bytes(source.randrange(0, 200)))
    service.still_works()
    assert service.log


def test_half_open_and_slow_ones_are_dropped() -> None:
    service = Service(handshake_seconds=0.3)
    with service.stranger() as silent, service.stranger() as slow:
        slow.sendall(b"MYDR\x01")
        assert received_to_end(silent) == b""
        assert received_to_end(slow) == b""
    service.wait_log("it did not prove the key in time")
    service.server.stop()


def test_a_flood_of_half_open_connections_does_not_lock_out_ranks() -> None:
    log: list[str] = []
    server = RendezvousServer(JOB, KEY, 1, log.append, handshake_seconds=60)
    port = server.start(["127.0.0.1"])["127.0.0.1"]
    flood = [socket.create_connection(("127.0.0.1", port)) for _ in range(MAX_STRANGERS + 50)]
    with contextlib.closing(RendezvousClient(f"127.0.0.1:{port}", JOB, KEY, 10)) as client:
        assert client.exchange("r", 0, 1, b"x") == [b"x"]
    assert any("dropped connection 32 from" in text for text in log)  # Counted in powers of two.
    server.stop()
    for connection in flood:
        connection.close()


BAD_REQUESTS: list[tuple[bytes, str]] = [
    (wire.REQUEST.pack(2, 1, 0, 1, 1, 0), "request of kind 2, expected 1"),
    (wire.REQUEST.pack(1, 0, 0, 1, 1, 0), "round name of 0 bytes, expected 1 to 64"),
    (wire.REQUEST.pack(1, 65, 0, 1, 1, 0), "round name of 65 bytes, expected 1 to 64"),
    (wire.REQUEST.pack(1, 1, 0, 0, 1, 0), "size 0, expected 1 to 4"),
    (wire.REQUEST.pack(1, 1, 0, 5, 1, 0), "size 5, expected 1 to 4"),
    (wire.REQUEST.pack(1, 1, 4, 4, 1, 0), "rank 4 in a round of size 4, expected 0 to 3"),
    (wire.REQUEST.pack(1, 1, 0, 1, 1, 0xFFFFFFFF),
     "blob of 4294967295 bytes, at most 16777216 are allowed"),
]  # fmt: skip


@pytest.mark.parametrize(("request_bytes", "text"), BAD_REQUESTS)
def test_request_limits(service: Service, request_bytes: bytes, text: str) -> None:
    with service.stranger() as connection:
        prove_as_client(connection)
        connection.sendall(request_bytes)
        answer = received_to_end(connection)
    assert answer == wire.pack_text(wire.STATUS_ERROR, text)
    service.still_works()


BAD_CALLS: list[tuple[Callable[[RendezvousClient], object], str]] = [
    (lambda c: c.exchange("", 0, 1, b""), "round name of 0 bytes, expected 1 to 64"),
    (lambda c: c.exchange("é" * 33, 0, 1, b""), "66 bytes, expected 1 to 64"),
    (lambda c: c.exchange("r", 1, 1, b""), "rank 1 in a round of size 1, expected 0 to 0"),
    (lambda c: c.exchange("r", 0, 9, b""), "size 9, expected 1 to 4"),
]


@pytest.mark.parametrize(("call", "text"), BAD_CALLS)
def test_limits_reach_the_client(
    service: Service, call: Callable[[RendezvousClient], object], text: str
) -> None:
    with service.client() as client, pytest.raises(RendezvousError, match=text):
        call(client)


def test_client_against_nobody_and_against_something_else() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(RendezvousError, match="did not complete the handshake in time"):
            RendezvousClient(f"127.0.0.1:{port}", JOB, KEY, 0.2)
    with pytest.raises(RendezvousError, match=f"cannot reach the launcher at 127.0.0.1:{port}"):
        RendezvousClient(f"127.0.0.1:{port}", JOB, KEY, 0.2)
    with pytest.raises(RendezvousError, match="job key of 3 bytes, expected 32"):
        RendezvousClient(f"127.0.0.1:{port}", JOB, b"abc", 0.2)
    with pytest.raises(RendezvousError, match="job id 'x': expected 16 hexadecimal digits"):
        RendezvousClient(f"127.0.0.1:{port}", "x", KEY, 0.2)


@pytest.mark.parametrize("host", ["[::1%nosuch]", "a" * 300, "127.0.0.1"])
def test_the_time_that_is_said_is_the_time_that_passed(host: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    began = time.monotonic()
    with pytest.raises(RendezvousError, match="cannot reach the launcher at") as caught:
        RendezvousClient(f"{host}:{port}", JOB, KEY, 0.2 if host == "127.0.0.1" else 30.0)
    seconds = re.findall(r"[0-9.]+ s\b", str(caught.value))
    assert len(seconds) == 1
    assert float(seconds[0].split()[0]) <= time.monotonic() - began + 0.1


def test_stopped_server_is_named(service: Service) -> None:
    with service.client() as client, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(client.exchange, "r", 0, 2, b"")
        with service.client(0.05) as probe, pytest.raises(RendezvousError):
            probe.exchange("probe", 0, 2, b"")  # by now the first request was read or will be
        service.server.stop()
        with pytest.raises(RendezvousError, match="lost the launcher at 127.0.0.1"):
            waiting.result(10)


@pytest.mark.parametrize("text", ["", "host", "host:", ":1", "host:x", "host:65536", "h:-1"])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(RendezvousError, match="expected host:port"):
        split_address(text)


def test_good_addresses() -> None:
    assert split_address("[::1]:80") == ("::1", 80)
    assert split_address("host:80") == ("host", 80)


def test_round_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mydist.launcher.rendezvous_round.MAX_PENDING_BYTES", 100)
    table: RoundTable[None] = RoundTable()
    table.reserve(90)
    with pytest.raises(RoundError, match="holds 90 bytes, 11 more exceed its limit of 100"):
        table.reserve(11)
    table.unreserve(90)
    table.reserve(100)
    for number in range(MAX_OPEN_ROUNDS):
        table.arrive(str(number), 0, 2, (b"", None))
    with pytest.raises(
        RoundError, match="1024 rounds are open, which is the limit; cannot open 'more'"
    ):
        table.arrive("more", 0, 2, (b"", None))
    for number in range(MAX_OPEN_ROUNDS):
        assert table.arrive(str(number), 1, 2, (b"", None)).blobs() == [b"", b""]
    assert len(table) == 0


def await_that(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_rounds_that_are_ended_fail_at_once_and_later(service: Service) -> None:
    with service.client() as first, service.client() as late, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.exchange, "init.3.1", 0, 2, b"")
        await_that(lambda: len(service.server._rounds) == 1)
        service.server.end_rounds("init.3.", "another rank has left")
        with pytest.raises(RendezvousError, match="another rank has left"):
            waiting.result()
        with pytest.raises(RendezvousError, match="round 'init.3.2': another rank has left"):
            late.exchange("init.3.2", 1, 2, b"")
        # Neither others nor the connections are concerned.
        both = [pool.submit(first.exchange, "init.33.1", 0, 2, b"a")]
        assert late.exchange("init.33.1", 1, 2, b"b") == [b"a", b"b"] == both[0].result()


class Heard:
    """What members of an elastic job have said."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, dict[str, object]]] = []

    def on_message(self, worker: int, message: dict[str, object]) -> None:
        self.messages.append((worker, message))


def test_workers_of_an_elastic_job_are_heard_and_told() -> None:
    heard = Heard()
    server = RendezvousServer(JOB, KEY, SIZE, members=heard)
    try:
        address = f"127.0.0.1:{server.start(['127.0.0.1'])['127.0.0.1']}"
        with contextlib.closing(RendezvousClient(address, JOB, KEY, 10.0)) as client:
            connection = client.join(7)
            connection.settimeout(10.0)
            connection.sendall(wire.pack_frame({"ready": 0}))
            await_that(lambda: heard.messages == [(7, {"ready": 0})])
            server.send(8, {"world": "of another one"})
            server.send(7, {"world": {"rank": 1}})
            length = wire.frame_bytes(connection.recv(4, socket.MSG_WAITALL))
            message = wire.unpack_frame(connection.recv(length, socket.MSG_WAITALL))
            assert message == {"world": {"rank": 1}}
            # What is no message ends this connection, and is passed to nobody.
            connection.sendall(wire.LENGTH.pack(3) + b"[1]")
            while connection.recv(4096):
                pass
        assert len(heard.messages) == 1
        for data in (wire.LENGTH.pack(1 << 30), wire.LENGTH.pack(200000) + b"{}"):
            with contextlib.closing(RendezvousClient(address, JOB, KEY, 10.0)) as client:
                connection = client.join(9)
                connection.settimeout(10.0)
                connection.sendall(data)
                while connection.recv(4096):
                    pass
    finally:
        server.stop()


def test_a_job_that_is_not_elastic_knows_no_members(service: Service) -> None:
    with service.client() as client:
        connection = client.join(0)
        connection.settimeout(10.0)
        assert connection.recv(1) == bytes([wire.STATUS_ERROR])
    service.still_works()
