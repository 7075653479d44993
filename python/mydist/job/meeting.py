"""How ranks meet before they are connected: small allgathers of bytes, one after the other.

Over mydistrun they go through the launcher's rendezvous, over torchrun through torch's TCPStore.
Round names carry the name of the init(), so that a rank left behind in an earlier one is not
taken for a member of this one.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch.distributed

from ..errors import MydistError
from .error_text import init_timeout
from .rendezvous_client import RendezvousClient, RendezvousError

Exchange = Callable[[bytes], list[bytes]]

# torch documents these, but does not export them to type checkers.
_distributed: Any = torch.distributed
_Store = Any

_POLL_SECONDS = 0.005
# Kept for the life of the process: the store of rank 0 is the one all others talk to, and later
# generations continue on it.
_stores: dict[tuple[str, int, int], _Store] = {}


def launcher_exchange(
    environment: Mapping[str, str], attempt: str, rank: int, size: int, timeout: float
) -> tuple[Exchange, Callable[[], None]]:
    """Rounds over the launcher's rendezvous, and what closes the connection to it.

    `attempt` names this init(), on all ranks; `timeout` is in seconds, for connecting and for each
    round. Raises MydistError when the launcher cannot be reached, or refuses us.
    """
    try:
        client = RendezvousClient.from_environment(environment, timeout)
    except RendezvousError as error:
        raise MydistError(f"rank {rank}: {error}") from error
    rounds = itertools.count(1)

    def exchange(blob: bytes) -> list[bytes]:
        try:
            return client.exchange(f"init.{attempt}.{next(rounds)}", rank, size, blob)
        except RendezvousError as error:
            text = f"rank {rank}: {error}"
            raise (
                init_timeout(text, error.missing) if error.missing else MydistError(text)
            ) from error

    return exchange, client.close


def store_exchange(
    environment: Mapping[str, str], attempt: str, rank: int, size: int, timeout: float
) -> Exchange:
    """Rounds over the store that torch.distributed's env:// rendezvous would use.

    `attempt` and `timeout` as above. Raises MydistError when the store cannot be reached, or
    another process has used it as this rank.
    """
    # A restarted torchrun attempt finds the keys of the last one in the agent's store.
    restart = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = _distributed.PrefixStore(
        f"mydist/{restart}/{attempt}", _open_store(environment, rank, size, timeout)
    )
    if store.add(f"processes/{rank}", 1) > 1:
        raise MydistError(
            f"rank {rank}: another process of this rank has called init() before this one (pid "
            f"{os.getpid()}). Only the rank itself calls init(), not a process that it has "
            "started, such as a worker of a DataLoader"
        )
    rounds = itertools.count(1)

    def exchange(blob: bytes) -> list[bytes]:
        number = next(rounds)
        store.set(f"{number}/{rank}", blob.hex())
        blobs = _collect(store, number, size, timeout)
        if number > 2:
            # A rank that has answered round n-1 has read round n-2 completely.
            store.delete_key(f"{number - 2}/{rank}")
        return blobs

    return exchange


def _open_store(environment: Mapping[str, str], rank: int, size: int, timeout: float) -> _Store:
    address, port = environment["MASTER_ADDR"], int(environment["MASTER_PORT"])
    key = (address, port, size)
    if key not in _stores:
        # torchrun serves the store itself and says so; otherwise rank 0 does.
        began = time.monotonic()
        by_agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        try:
            _stores[key] = _distributed.TCPStore(
                address,
                port,
                world_size=size,
                is_master=environment.get("RANK", str(rank)) == "0" and not by_agent,
                timeout=timedelta(seconds=timeout),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except RuntimeError as error:
            raise MydistError(
                f"rank {rank}: cannot reach the store at MASTER_ADDR={address}, "
                f"MASTER_PORT={port}: "
                f"{_first_line(error)} (gave up after {time.monotonic() - began:.1f} s); check "
                f"that all {size} ranks were started and that the port is free and reachable"
            ) from error
    return _stores[key]


def _collect(store: _Store, number: int, size: int, timeout: float) -> list[bytes]:
    keys = [f"{number}/{rank}" for rank in range(size)]
    deadline = time.monotonic() + timeout
    while not store.check(keys):
        if time.monotonic() > deadline:
            missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
            raise init_timeout(
                f"ranks {missing} of {size} did not arrive within {timeout:g} s; they were not "
                "started, have ended, or have not called mydist.init()",
                missing,
            )
        time.sleep(_POLL_SECONDS)
    return [bytes.fromhex(value.decode()) for value in store.multi_get(keys)]


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
