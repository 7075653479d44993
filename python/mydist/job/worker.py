"""The place of this process in an elastic job: it waits for epochs, and hears of the next one.

`mydistrun` says who is in an epoch; see docs/decisions/0032-elastic.md. A worker tells it when it
waits for the next epoch, and gets the numbers of its rank in there. All calls come from the thread
that trains. Without an elastic job `worker()` is None.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any

from ..errors import MydistError
from . import rendezvous_wire as wire
from .rendezvous_client import RendezvousClient, RendezvousError

_VARIABLE = "MYDIST_JOB_WORKER"
UNSYNCED = -1
_WHY_CHARACTERS = 500


@dataclass(frozen=True)
class World:
    """An epoch as one of its ranks sees it. All get the state of rank `root`."""

    epoch: int
    rank: int
    size: int
    root: int


class LauncherLostError(MydistError):
    """mydistrun does not answer any more, so there is no next epoch."""


class Worker:
    """This process. `commit` is the number of the commit whose state it has."""

    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.world: World | None = None
        self.commit = UNSYNCED
        self._connection = connection
        self._asked = 0
        self._lost: dict[str, Any] = {"lost": False, "blamed": [], "why": ""}

    @property
    def epoch(self) -> int:
        """The number of the last epoch, 0 before the first."""
        return self.world.epoch if self.world is not None else 0

    def note_loss(self, error: BaseException) -> None:
        """The epoch ended with this error, which the next report tells."""
        failure = error.failure if isinstance(error, MydistError) else {}
        ranks = failure.get("ranks", ())
        why = f"{type(error).__name__}: {error}"[:_WHY_CHARACTERS]
        self._lost = {"lost": True, "blamed": list(ranks)[:32], "why": why}

    def next_world(self) -> World:
        """Waits for the next epoch; mydistrun limits how long. Raises LauncherLostError, or
        SystemExit when this process is not needed any more."""
        self._send({"ready": self.epoch, "commit": self.commit, **self._lost})
        self._lost = {"lost": False, "blamed": [], "why": ""}
        while True:
            message = self._receive()
            if "end" in message:
                raise SystemExit(0)
            if "world" in message:
                self.world = World(**message["world"])
                _take_numbers(self.world)
                return self.world
            self._note(message)

    def is_asked(self) -> bool:
        """Whether mydistrun wants a new epoch after this one. Does not block."""
        while self._asked != self.epoch and select.select([self._connection], [], [], 0)[0]:
            self._note(self._receive())
        return self._asked == self.epoch

    def tell_done(self) -> None:
        """The work is done: no rank is to be replaced any more."""
        self._send({"done": True})

    def _note(self, message: dict[str, Any]) -> None:
        if "ask" in message:
            self._asked = int(message["ask"])

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._connection.sendall(wire.pack_frame(message))
        except OSError as error:
            raise _no_launcher(error) from None

    def _receive(self) -> dict[str, Any]:
        try:
            length = wire.frame_bytes(self._read(wire.LENGTH.size))
            return wire.unpack_frame(self._read(length))
        except (OSError, ValueError) as error:
            raise _no_launcher(error) from None

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            piece = self._connection.recv(count - len(data))
            if not piece:
                raise ConnectionResetError("it closed the connection")
            data += piece
        return data


def _no_launcher(error: Exception) -> LauncherLostError:
    return LauncherLostError(f"lost mydistrun: {error}; it has ended, or the network failed")


def _take_numbers(world: World, environment: MutableMapping[str, str] = os.environ) -> None:
    """For the rest of this process and for its children, as mydistrun would have set them."""
    environment["MYDIST_RANK"] = environment["RANK"] = str(world.rank)
    environment["MYDIST_SIZE"] = environment["WORLD_SIZE"] = str(world.size)


_worker: Worker | None = None


def worker(timeout: float = 30.0) -> Worker | None:
    """This process's place in an elastic job; None where it has none.

    Connects to mydistrun at the first call, within `timeout` seconds. Raises MydistError.
    """
    global _worker
    number = os.environ.get(_VARIABLE)
    if _worker is not None or number is None:
        return _worker
    try:
        client = RendezvousClient.from_environment(os.environ, timeout)
        _worker = Worker(int(number), client.join(int(number)))
    except (RendezvousError, OSError) as error:
        raise MydistError(f"worker {number}: {error}") from error
    # A child that this process starts is no worker.
    del os.environ[_VARIABLE]
    return _worker


def _forget_in_child() -> None:
    """A forked child is no worker, and does not read what is meant for its parent."""
    global _worker
    if _worker is not None:
        with contextlib.suppress(OSError):
            _worker._connection.close()
        _worker = None


os.register_at_fork(after_in_child=_forget_in_child)
