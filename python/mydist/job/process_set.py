"""Process sets: the ranks that take part in a collective.

A set is known to the whole job under one number. It comes into being with
`mydist.init(process_sets=[…])` or `mydist.add_process_set()`, which all ranks of the job call, and
ends with `mydist.remove_process_set()` or `mydist.shutdown()`. Collectives of different sets never
wait for each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import set_table, topology
from .error_text import wrong_type
from .set_table import Membership

__all__ = ["ProcessSet", "global_process_set"]


class ProcessSet:
    """The ranks that take part in a collective: some of the ranks of the job.

    Making one involves no communication. Pass it to `mydist.init(process_sets=[…])` or to
    `mydist.add_process_set()`; then every call with a `process_set` argument takes it. After
    `mydist.shutdown()` it has to be added again.
    """

    def __init__(self, ranks: Any) -> None:
        """A set that has yet to be added.

        Args:
            ranks: the global ranks in it, in any order; or an mpi4py communicator, which may be
                another one on each rank (`comm.Split()`) and COMM_NULL on some.

        Raises:
            ValueError: `ranks` is empty, or one of them is negative or there twice.
            TypeError: `ranks` is no list of ints and no communicator.
        """
        self._source: list[int] | Any = (
            ranks if set_table.is_communicator(ranks) else set_table.check_ranks(ranks)
        )
        self._membership: Membership | None = None

    def _current(self) -> Membership | None:
        """What the job knows it as, if it has been added and neither removed nor shut down."""
        if self._membership is not None and not self._membership.valid:
            self._membership = None
        return self._membership

    @property
    def process_set_id(self) -> int:
        """The same number on all ranks; 0 is the whole job. ValueError before it is added."""
        current = self._current()
        if current is None or current.number is None:
            raise ValueError(f"{self!r} is not part of the job; {set_table.ADD_IT}")
        return current.number

    @property
    def ranks(self) -> list[int]:
        """The global ranks in it, ascending.

        ValueError for a set made from a communicator, before it is added.
        """
        current = self._current()
        if current is not None:
            return list(current.ranks)
        if isinstance(self._source, list):
            return list(self._source)
        raise ValueError(f"{self!r}: its ranks are unknown until it is added; {set_table.ADD_IT}")

    def size(self) -> int:
        """How many ranks are in it. ValueError as for `ranks`."""
        return len(self.ranks)

    def rank(self) -> int:
        """This process's index in the set. ValueError when it is not in it, or before init()."""
        own = topology.rank()
        if own not in self.ranks:
            raise ValueError(f"rank {own} is not in {self!r}; check included() first")
        return self.ranks.index(own)

    def included(self) -> bool:
        """Whether this process is in the set. ValueError before mydist.init()."""
        return topology.rank() in self.ranks

    def __repr__(self) -> str:
        current = self._current()
        if current is not None:
            return f"ProcessSet(process_set_id={current.number}, ranks={list(current.ranks)})"
        if isinstance(self._source, list):
            return f"ProcessSet({self._source})"
        return "ProcessSet(communicator)"

    def __reduce__(self) -> str | tuple[Any, ...]:
        # What is loaded elsewhere has to be added there.
        return ProcessSet, (self.ranks,)

    def __copy__(self) -> ProcessSet:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ProcessSet:
        # Copies of a model go on working in the same set.
        return self


class _GlobalProcessSet(ProcessSet):
    """The whole job, which needs no adding."""

    def __init__(self) -> None:
        self._source = []
        self._membership = None

    @property
    def process_set_id(self) -> int:
        """0."""
        return set_table.GLOBAL

    @property
    def ranks(self) -> list[int]:
        """All ranks. Raises ValueError before mydist.init()."""
        return list(range(topology.size()))

    def size(self) -> int:
        """mydist.size(), which is faster. Raises ValueError before mydist.init()."""
        return topology.size()

    def __repr__(self) -> str:
        return "ProcessSet(process_set_id=0)"

    def __reduce__(self) -> str:
        return "global_process_set"


global_process_set: ProcessSet = _GlobalProcessSet()


def add_to_job(
    call: str, process_sets: Sequence[ProcessSet], patience: float | None = None
) -> None:
    """Adds the sets in their order, for the call of this name. Collective over the job.

    `patience`: see set_table.add.
    """
    _check_new(call, process_sets, topology.size())
    for process_set in process_sets:
        process_set._membership = set_table.add(process_set._source, patience)


def _check_new(call: str, sets: Sequence[ProcessSet], job_size: int) -> None:
    """Raises ValueError for a set that cannot be added to a job of this size."""
    seen = set_table.known(job_size)
    for i, process_set in enumerate(sets):
        current = process_set._current()
        if current is not None or process_set._source == []:
            raise ValueError(f"{call}: {process_set!r} is already part of the job")
        if not isinstance(process_set._source, list):
            continue
        ranks = tuple(process_set._source)
        if ranks[-1] >= job_size:
            raise ValueError(
                f"{call}: {process_set!r} contains rank {ranks[-1]}, but the job has ranks 0 to "
                f"{job_size - 1}"
            )
        set_table.check_not_seen(call, ranks, seen)
        seen[ranks] = f"element {i} of process_sets"


def check_process_sets(process_sets: Any) -> list[ProcessSet]:
    """The argument of init() as a list. Raises TypeError or ValueError."""
    if process_sets is None:
        return []
    expected = "a list of ProcessSet, 'dynamic' or None"
    if isinstance(process_sets, str):
        if process_sets == "dynamic":  # Sets can be added and removed at any time anyway.
            return []
        raise ValueError(f"init: process_sets is {process_sets!r}, expected {expected}")
    if not isinstance(process_sets, (list, tuple)):
        raise wrong_type("init: process_sets", process_sets, expected)
    for i, item in enumerate(process_sets):
        if not isinstance(item, ProcessSet):
            one = "a ProcessSet; make one with mydist.ProcessSet(ranks)"
            raise wrong_type(f"init: process_sets[{i}]", item, one)
    return list(process_sets)


def check_added(process_sets: list[ProcessSet]) -> None:
    """Raises ValueError when init(), called once more, was given a set that is not in the job."""
    for process_set in process_sets:
        if process_set._current() is None and process_set is not global_process_set:
            raise ValueError(
                f"init: mydist is already initialized, without {process_set!r}; add it with "
                "mydist.add_process_set()"
            )
