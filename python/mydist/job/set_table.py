"""Which process sets the job has, as this rank knows it.

The engine of every rank keeps the members by number; what is here belongs to the ProcessSet objects
and decides at the call what can be told without asking other ranks.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .. import _C
from . import topology
from .error_text import init_timeout, wrong_type
from .names import resolve_name, restart_names, submit

GLOBAL = 0
_POLL_SECONDS = 0.002
ADD_IT = "add it first, with mydist.init(process_sets=[…]) or mydist.add_process_set()"


@dataclass
class Membership:
    """One set that was added: its number, or None on a rank that none of several sets is for."""

    number: int | None
    ranks: tuple[int, ...]
    # All sets that were made by the same call, by number.
    siblings: dict[int, tuple[int, ...]]
    valid: bool = True


_memberships: list[Membership] = []


def forget_all() -> None:
    """The job is over, and with it its process sets."""
    for membership in _memberships:
        membership.valid = False
    _memberships.clear()


topology.when_job_ends(forget_all)


def is_communicator(source: object) -> bool:
    """Whether it is used as an mpi4py communicator."""
    return callable(getattr(source, "Get_size", None)) and callable(
        getattr(source, "allgather", None)
    )


def check_ranks(ranks: object) -> list[int]:
    """The ranks in ascending order. Raises TypeError or ValueError."""
    if not isinstance(ranks, (Sequence, set, frozenset)) or isinstance(ranks, (str, bytes)):
        expected = "a list of global ranks or an mpi4py communicator"
        raise wrong_type("ProcessSet: ranks", ranks, expected)
    checked: list[int] = []
    for item in ranks:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise wrong_type("ProcessSet: an item of ranks", item, "an int")
        rank = int(item.__index__())
        if rank < 0:
            raise ValueError(f"ProcessSet: ranks contains {rank}, expected ranks of at least 0")
        if rank in checked:
            raise ValueError(f"ProcessSet: ranks contains {rank} twice, expected each rank once")
        checked.append(rank)
    if not checked:
        raise ValueError("ProcessSet: ranks is empty, expected at least one global rank")
    return sorted(checked)


def known(job_size: int) -> dict[tuple[int, ...], str]:
    """What the sets of the job are called, by their ranks."""
    seen = {tuple(range(job_size)): "the global process set, id 0"}
    for membership in _memberships:
        for number, ranks in membership.siblings.items():
            seen[ranks] = f"process set {number}"
    return seen


def check_not_seen(call: str, ranks: tuple[int, ...], seen: dict[tuple[int, ...], str]) -> None:
    """Raises ValueError when a set with these ranks is among those that were seen."""
    if ranks in seen:
        raise ValueError(
            f"{call}: ranks {list(ranks)} are those of {seen[ranks]}; use that set, because no two "
            "sets may have the same ranks"
        )


def add(source: list[int] | Any, patience: float | None = None) -> Membership:
    """Adds the set, or the sets of all ranks' communicators. Collective over the job.

    `patience`: the seconds for each step; None: as the stall settings say.
    """
    lists = [tuple(source)] if isinstance(source, list) else _exchange_groups(source, patience)
    siblings = {_add_one(ranks, patience): ranks for ranks in lists}
    own = topology.rank()
    mine = [(number, ranks) for number, ranks in siblings.items() if own in ranks]
    if not mine and len(lists) == 1:
        mine = list(siblings.items())
    number, ranks = mine[0] if mine else (None, ())
    membership = Membership(number, ranks, siblings)
    _memberships.append(membership)
    return membership


def _run(collective: str, arguments: tuple[Any, ...], patience: float | None) -> list[torch.Tensor]:
    """The outputs. Raises CollectiveTimeoutError when they take longer than `patience`."""
    if patience is None:
        outputs: list[torch.Tensor] = getattr(_C, collective)(*arguments)
        return outputs
    handle = getattr(_C, f"enqueue_{collective}")(*arguments)
    deadline = time.monotonic() + patience
    while not _C.poll(handle):
        if time.monotonic() > deadline:
            raise init_timeout(
                f"init: the process sets were not added within {patience:g} s. A rank is stopped, "
                "or has other process sets. MYDIST_TIMEOUT_SECONDS sets how long to wait"
            )
        time.sleep(_POLL_SECONDS)
    return _C.wait(handle)


def _exchange_groups(communicator: Any, patience: float | None) -> list[tuple[int, ...]]:
    """The different groups of ranks behind the communicators, the same list on every rank."""
    own = topology.rank()
    # COMM_NULL is false. What MPI calls a rank need not be ours, so the members tell each other.
    group = tuple(sorted(communicator.allgather(own))) if communicator else ()
    name = resolve_name("add_process_set.communicator", None)
    by_rank = submit(name, _gather_ranks, group, f"{name}.ranks", patience)
    groups = sorted({members for members in by_rank if members})
    if not groups:
        raise ValueError("add_process_set: the communicator is COMM_NULL on all ranks")
    for members in groups:
        for rank in members:
            if by_rank[rank] != members:
                raise ValueError(
                    f"add_process_set: rank {rank} is in the communicator of ranks "
                    f"{list(members)}, but passed one of ranks {list(by_rank[rank])}; pass the "
                    "same communicator on all of its ranks"
                )
    seen = known(topology.size())
    for members in groups:
        check_not_seen("add_process_set", members, seen)
    return groups


def _gather_ranks(own: tuple[int, ...], name: str, patience: float | None) -> list[tuple[int, ...]]:
    """What all ranks give, in rank order. Collective over the job."""
    # The length says where it ends.
    row = torch.tensor([len(own), *own], dtype=torch.int64, device="cpu")
    numbers = _run("allgather", ([row], [name], "", GLOBAL), patience)[0].tolist()
    by_rank: list[tuple[int, ...]] = []
    begin = 0
    while begin < len(numbers):
        end = begin + 1 + numbers[begin]
        by_rank.append(tuple(numbers[begin + 1 : end]))
        begin = end
    return by_rank


def _add_one(ranks: tuple[int, ...], patience: float | None) -> int:
    name = resolve_name("add_process_set", None)
    number = int(submit(name, _run, "add_process_set", (list(ranks), name), patience)[0])
    restart_names(number)
    return number


def remove(membership: Membership) -> None:
    """Ends the set if this rank is in it, and forgets it and its siblings."""
    if membership.number is not None and topology.rank() in membership.ranks:
        # Not numbered: ranks whose first attempt was refused meet the others in the next one.
        _C.remove_process_set(membership.number, "remove_process_set")
    membership.valid = False
    _memberships.remove(membership)
