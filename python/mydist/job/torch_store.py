"""How the ranks of a program meet for torch.distributed: `init_method="mydist://"`.

torch's own "env://" needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. mydistrun and torchrun set
them. MPI does not, so there the ranks tell each other over MPI where their store is. A process that
no launcher has started is a program of one rank, as for mydist.init().
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

from torch.distributed import HashStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import register_rendezvous_handler, rendezvous

SCHEME = "mydist"
_TIMEOUT = timedelta(minutes=30)


def register() -> None:
    """Makes "mydist://" known to torch.distributed. Further calls do nothing."""
    try:
        register_rendezvous_handler(SCHEME, meet)  # type: ignore[no-untyped-call]
    except RuntimeError:  # It is known.
        return


def started_by_mpi(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether MPI connects this rank to the others, unless the user wants another transport."""
    controller = environment.get("MYDIST_CONTROLLER", "auto") or "auto"
    if controller != "auto" or "MYDIST_RENDEZVOUS" in environment:
        return controller == "mpi"
    # A torchrun that mpirun has started passes MPI's variables on to ranks of its own.
    mpi = environment.get("OMPI_COMM_WORLD_RANK"), environment.get("OMPI_COMM_WORLD_SIZE", "1")
    torch = environment.get("RANK", mpi[0]), environment.get("WORLD_SIZE", mpi[1])
    return mpi[1] != "1" and torch == mpi


def meet(url: str, timeout: timedelta = _TIMEOUT, **_: Any) -> Iterator[tuple[Store, int, int]]:
    """torch's rendezvous handler: yields the store, this rank and the number of ranks.

    Raises ValueError when a variable of the launcher is malformed or missing, and DistBackendError
    when MPI cannot connect the ranks.
    """
    asked = {name: int(values[0]) for name, values in parse_qs(urlparse(url).query).items()}
    for store, rank, size in _meetings(timeout):
        told = {"rank": rank, "world_size": size}
        if any(asked[name] not in (-1, told[name]) for name in told.keys() & asked.keys()):
            raise ValueError(
                f"{SCHEME}://: the launcher says this is rank {rank} of {size}, and the program "
                f"asks for {asked}; leave rank and world_size out"
            )
        yield store, rank, size


def _meetings(timeout: timedelta) -> Iterator[tuple[Store, int, int]]:
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        yield from rendezvous("env://", timeout=timeout)
    from .bootstrap import launched_as, refuse_foreign_launcher  # They load the compiled part.

    refuse_foreign_launcher(os.environ)
    launched = launched_as()
    if launched is None:
        raise ValueError(
            "MYDIST_CONTROLLER=mpi, but no mpirun of Open MPI has started this process. Start it "
            "with mpirun or `mydistrun --mpi`, or leave MYDIST_CONTROLLER unset"
        )
    rank, size = launched
    yield _store_over_mpi(rank, size, timeout) if size > 1 else HashStore(), rank, size
    raise RuntimeError(f"{SCHEME}:// cannot repeat a rendezvous; call init_process_group() again")


def _store_over_mpi(rank: int, size: int, timeout: timedelta) -> Store:
    """A store that rank 0 serves on a free port. Collective over all ranks."""
    from .. import _c10d

    meeting = _c10d.MpiMeeting(rank, size)
    is_one_host = len(set(meeting.gather(meeting.host().encode()))) == 1
    place, store = b"", None
    if rank == 0:
        address = meeting.address(is_one_host)
        store = TCPStore(address, 0, size, is_master=True, timeout=timeout, wait_for_workers=False)
        place = f"{address} {store.port}".encode()
    address, port = meeting.gather(place)[0].decode().split()
    meeting.close()
    return store or TCPStore(address, int(port), size, timeout=timeout, wait_for_workers=False)
