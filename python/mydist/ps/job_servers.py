"""The servers of this job, and this rank's client of them."""

from __future__ import annotations

import itertools
import os
import secrets
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..collectives.objects import allgather_object, broadcast_object
from ..job import topology
from ..job.recording import add_stats
from ..job.rendezvous_client import RendezvousError, job_key, split_address
from . import binding

if TYPE_CHECKING:
    from .. import _ps
    from .table import BaseTable

# Number, host, port, name of the Unix socket.
Address = tuple[int, str, int, str]

_KEY_BYTES = 32
_MOST_NUMBER = (1 << 32) - 2  # Of a table, in a frame; the one above is that of no table.


@dataclass
class JobServers:
    """What this rank has of the servers.

    Attributes:
        client: connected to all of them.
        server: the one whose threads run in this process, if any.
        numbers: those that this rank gives to tables whose first worker it is. See numbers_of().
        open_tables: those that the program still has and has not closed.
        has_left: whether this rank has said goodbye.
    """

    client: _ps.Client
    server: _ps.Server | None
    numbers: Iterator[int]
    open_tables: weakref.WeakSet[BaseTable] = field(default_factory=weakref.WeakSet)
    has_left: bool = False

    def take_number(self, number: int, call: str) -> int:
        """The table that `call` creates has the number, which its first worker has given.

        Raises ValueError when there are no more.
        """
        global _last_number
        if number > _MOST_NUMBER:
            raise ValueError(
                f"{call}: the numbers of tables, up to {_MOST_NUMBER}, are used up; start the "
                "job again"
            )
        _last_number = max(_last_number, number)
        return number


_current: JobServers | None = None
# The highest of a table that this process has worked on, in whatever job.
_last_number = 0


def numbers_of(rank: int, size: int, last: int) -> Iterator[int]:
    """Of tables whose first worker is this rank: every size-th number.

    No other rank gives one of them, so process sets that know nothing of each other may create
    tables at the same time. `last`: the highest one so far; the servers may still know its table.
    """
    return itertools.count(last + 1 + rank, size)


def current() -> JobServers:
    """The servers of this job. The first call starts them, and is collective over all ranks.

    Raises:
        ValueError: before init(), in a child of a rank, or for a malformed setting.
        MydistError: mydist was built without the parameter server, or a server cannot be reached.
    """
    global _current
    topology.refuse_in_child("md.ps")
    topology.rank()  # Raises before init().
    if _current is None:
        _current = _connect()
    return _current


def find() -> JobServers | None:
    """The servers of this job, where a table has been created."""
    return _current


def _connect() -> JobServers:
    module = binding.load()
    started = os.environ.get("MYDIST_SERVER_ADDRESSES")
    server = None
    if started:
        addresses, key = parse_addresses(started), job_key(os.environ)
    else:
        server, addresses, key = _start_in_ranks(module)
    client = module.Client(
        servers=addresses,
        key=key,
        rank=topology.rank(),
        pid=os.getpid(),
        session=secrets.randbits(64),
    )
    last = max(allgather_object(_last_number, name="ps.tables"))
    return JobServers(client, server, numbers_of(topology.rank(), topology.size(), last))


def _start_in_ranks(module: Any) -> tuple[_ps.Server | None, list[Address], bytes]:
    """Threads of the first ranks become servers. Collective over all ranks."""
    rank = topology.rank()
    key = broadcast_object(secrets.token_bytes(_KEY_BYTES), root_rank=0, name="ps.key")
    server = None
    if rank < min(module.server_count(), topology.size()):
        server = module.Server(rank, topology.cross_size() == 1, key)
    mine = server.address() if server is not None else None
    told = allgather_object(mine, name="ps.servers")
    return server, [address for address in told if address is not None], key


def parse_addresses(text: str) -> list[Address]:
    """MYDIST_SERVER_ADDRESSES: `0=HOST:PORT/LOCAL,1=…`. Raises ValueError."""
    addresses = []
    for part in text.split(","):
        number, _, place = part.partition("=")
        host_and_port, _, local = place.partition("/")
        try:
            host, port = split_address(host_and_port)
            addresses.append((int(number), host, port, local))
        except (RendezvousError, ValueError) as error:
            raise ValueError(
                f"MYDIST_SERVER_ADDRESSES={text!r} is not valid: expected what mydistrun sets, "
                "0=HOST:PORT/NAME,…"
            ) from error
    return addresses


def _say_goodbye() -> None:
    if _current is not None:
        _current.has_left = True
        _current.client.close(topology.ends_in_failure())


def _stop() -> None:
    """All ranks have left, and have said goodbye before."""
    global _current
    if _current is not None:
        _current.server = None  # Tables that the program still has keep the rest.
    _current = None


def _stats() -> dict[str, float]:
    if _current is None:
        return {}
    counted = _current.client.stats()
    pushes = [table.staleness() for table in _current.open_tables]
    count = sum(number for number, _, _ in pushes)
    return {
        "ps_push_bytes": counted["sent_bytes"],
        "ps_pull_bytes": counted["received_bytes"],
        "ps_repeated": counted["repeated"],
        "ps_wait_us": counted["wait_us"],
        "ps_staleness_mean": sum(n * mean for n, mean, _ in pushes) / count if count else 0.0,
        "ps_staleness_max": max((most for _, _, most in pushes), default=0),
    }


add_stats(_stats)
topology.when_job_ends(_say_goodbye)
topology.when_job_has_ended(_stop)
