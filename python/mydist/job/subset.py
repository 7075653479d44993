"""What init(comm=…) asks for: a job of all launched processes, or of some of them.

Processes outside of the list are not part of the job; they may form one of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

__all__ = ["check_comm", "members_of"]


def check_comm(comm: Any) -> list[int] | Any | None:
    """None, a list of ranks, or something used as an mpi4py communicator. Raises TypeError."""
    if comm is None or callable(getattr(comm, "Get_size", None)):
        return comm
    if not isinstance(comm, Sequence) or isinstance(comm, (str, bytes)):
        raise TypeError(
            f"init: comm is {comm!r} ({type(comm).__qualname__}), expected None, a list of ranks "
            "or an mpi4py communicator"
        )
    for item in comm:
        if isinstance(item, bool) or not isinstance(item, int):
            raise TypeError(f"init: comm contains {item!r}, expected ranks (ints)")
    return [int(item) for item in comm]


def members_of(comm: list[int] | Any | None, rank: int, size: int) -> tuple[int, ...] | None:
    """The launched ranks that form the job; None for all of them.

    Args:
        comm: what check_comm() returned.
        rank, size: this process's place among the launched ones.

    Raises:
        ValueError: `comm` does not fit what was launched, or this process is not among its ranks.
    """
    if comm is None:
        return None
    members = _ranks_in(comm, rank, size) if callable(getattr(comm, "Get_size", None)) else comm
    if not members:
        raise ValueError("init: comm is empty, expected the ranks that form the job")
    if not all(0 <= member < size for member in members):
        raise ValueError(f"init: comm is ranks {members}, but the job has ranks 0 to {size - 1}")
    if sorted(set(members)) != list(members):
        raise ValueError(
            f"init: comm is {members}, expected the ranks in ascending order, each of them once"
        )
    if rank not in members:
        raise ValueError(
            f"init: comm is ranks {members}, but this process was launched as rank {rank}; call "
            "init() only on the ranks of the list, or with another list on the others"
        )
    return None if len(members) == size else tuple(members)


def _ranks_in(communicator: Any, rank: int, size: int) -> list[int]:
    """The launched ranks behind an mpi4py communicator. Collective over it."""
    if not communicator:
        raise ValueError("init: comm is COMM_NULL; call init() only on the communicator's ranks")
    count = int(communicator.Get_size())
    if count == size:
        return list(range(size))
    if count > size:
        raise ValueError(
            f"init: comm is a communicator of {count} ranks, but the job has ranks 0 to {size - 1}"
        )
    return sorted(int(member) for member in communicator.allgather(rank))
