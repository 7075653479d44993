"""Process sets as `horovod.common.process_sets` has them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ...collectives import sets as collective_sets
from ...job import process_set as job_sets
from ...job import topology
from .exceptions import HorovodInternalError
from .util import is_iterable

__all__ = [
    "ProcessSet",
    "add_process_set",
    "global_process_set",
    "own_set",
    "remove_process_set",
]

NO_JOB = "Horovod has not been initialized; use hvd.init()."
_NOT_RANKS = (
    "ProcessSet should be initialized with a list of process ranks or an mpi4py Comm object"
)
_DYNAMIC = "HOROVOD_DYNAMIC_PROCESS_SETS"


class ProcessSet:
    """Ranks that take part in a collective.

    Attributes:
        process_set_id: its number, the same on all ranks; None while it is not registered.
        ranks: ascending; None for a communicator that is not registered.
        mpi_comm: the communicator that it was made from, or None.
    """

    process_set_id: int | None = None
    ranks: list[int] | None = None
    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Any) -> None:
        """Raises ValueError for what is no list of ranks and no mpi4py communicator."""
        self.own: job_sets.ProcessSet | None = None  # What mydist knows it as.
        if is_iterable(ranks_or_comm):
            ranks = sorted(ranks_or_comm)
            if any(not isinstance(rank, int) for rank in ranks):
                raise ValueError(_NOT_RANKS)
            self.ranks = ranks
        else:
            try:
                self.own = job_sets.ProcessSet(ranks_or_comm)
            except (TypeError, ValueError):
                raise ValueError(_NOT_RANKS) from None
            self.mpi_comm = ranks_or_comm

    def size(self) -> int | None:
        """How many ranks are in it; None while it is not registered. ValueError before init()."""
        if self.process_set_id is None:
            return None
        _require_job()
        return len(self.ranks or ())

    def rank(self) -> int | None:
        """This rank's index in it; None while it is not registered.

        Raises ValueError before init(), and on other ranks.
        """
        if self.process_set_id is None:
            return None
        if not self.included():
            raise ValueError("Process is not part of provided process set.")
        return (self.ranks or []).index(topology.rank())

    def included(self) -> bool | None:
        """Whether this rank is in it; None while its ranks are unknown.

        Raises ValueError before init().
        """
        if self.ranks is None:
            return None
        _require_job()
        return topology.rank() in self.ranks

    def __str__(self) -> str:
        return (
            f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, "
            f"mpi_comm={self.mpi_comm})"
        )

    def register(self, own: job_sets.ProcessSet) -> None:
        """mydist has added it as `own`."""
        self.own, self.process_set_id, self.ranks = own, own.process_set_id, own.ranks
        _registered[tuple(self.ranks)] = self

    def invalidate(self) -> None:
        """It is not registered any more."""
        _registered.pop(tuple(self.ranks or ()), None)
        self.process_set_id = None
        if self.mpi_comm is None:
            self.own = None


# By their ranks; without the global one.
_registered: dict[tuple[int, ...], ProcessSet] = {}
_may_change = False

global_process_set = ProcessSet([])
global_process_set.process_set_id = 0
global_process_set.own = job_sets.global_process_set


def own_set(process_set: ProcessSet | job_sets.ProcessSet) -> job_sets.ProcessSet:
    """What mydist's collectives take.

    Raises HorovodInternalError before init(), and ValueError for a set that is not registered.
    """
    if not topology.is_initialized():
        raise HorovodInternalError(NO_JOB)
    if isinstance(process_set, job_sets.ProcessSet):
        return process_set
    if process_set.process_set_id is None or process_set.own is None:
        raise ValueError("Process set does not exist or has not been registered.")
    return process_set.own


def given_sets(process_sets: Any) -> list[ProcessSet]:
    """The argument of init(): "dynamic" and None stand for no sets."""
    global _may_change
    is_word = isinstance(process_sets, str) and process_sets.lower() == "dynamic"
    if is_word:
        os.environ[_DYNAMIC] = "1"
    _may_change = os.environ.get(_DYNAMIC, "0") not in ("", "0")
    return [] if is_word or process_sets is None else list(process_sets)


def begin(process_sets: Sequence[ProcessSet], communicator: Any = None) -> None:
    """The job has begun, on the ranks of this communicator if there is one.

    The sets are added to it, in their order.

    Raises ValueError for a set that is there twice, or is the whole job.
    """
    _registered.clear()
    global_process_set.ranks = list(range(topology.size()))
    global_process_set.mpi_comm = communicator
    for index, process_set in enumerate(process_sets):
        duplicate = ValueError(
            f"Horovod could not be initialized because process_sets entry number {index} is a "
            f"duplicate: {process_set}"
        )
        if _is_known(process_set.ranks):
            raise duplicate
        own = process_set.own or job_sets.ProcessSet(process_set.ranks)
        try:
            process_set.register(collective_sets.add_process_set(own))
        except ValueError:
            if process_set.mpi_comm is None:
                raise
            raise duplicate from None


def end() -> None:
    """The job is over, and with it its sets."""
    for process_set in list(_registered.values()):
        process_set.invalidate()
    global_process_set.ranks = []


def _is_known(ranks: list[int] | None) -> bool:
    return ranks is not None and (tuple(ranks) in _registered or ranks == global_process_set.ranks)


def _require_job() -> None:
    if not topology.is_initialized():
        raise ValueError(NO_JOB)


def _require_change(verb: str) -> None:
    _require_job()
    if not _may_change:
        raise ValueError(
            f"Set {_DYNAMIC}=1 to allow {verb} process sets after Horovod initialization."
        )


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Adds a set to the job; every rank of the job calls it with an equal one.

    Raises:
        ValueError: sets may not change, or one with these ranks exists.
        NotImplementedError: the set was made from a communicator.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    if process_set.ranks is None:
        raise NotImplementedError(
            "Dynamically adding process sets defined by an MPI communicator is not implemented. "
            "Please build the process set via a list of ranks."
        )
    _require_change("adding")
    if _is_known(process_set.ranks):
        raise ValueError(f"Attempted to add a duplicate process set: {process_set}")
    process_set.register(collective_sets.add_process_set(job_sets.ProcessSet(process_set.ranks)))
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """Takes a set out of the job; every rank calls it. Whether there was such a set."""
    if not process_set.process_set_id:  # Not registered, or the whole job.
        return False
    _require_change("removing")
    own = own_set(process_set)
    process_set.invalidate()
    collective_sets.remove_process_set(own)
    return True
