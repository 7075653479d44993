"""Process sets: the ranks that take part in a collective.

A set is known to the whole job under one number. It comes into being with
`mydist.init(process_sets=[…])` or `mydist.add_process_set()`, which all ranks of the job call, and
ends with `mydist.remove_process_set()` or `mydist.shutdown()`. Collectives of different sets never
wait for each other.
"""

from __future__ import annotations

from typing import Any

from . import lifecycle, set_table
from .set_table import Membership

__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


class ProcessSet:
    """The ranks that take part in a collective: some of the ranks of the job.

    Making one talks to nobody. Pass it to `mydist.init(process_sets=[…])` or to
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
        raise ValueError(f"{self!r}: its ranks are known once it is added; {set_table.ADD_IT}")

    def size(self) -> int:
        """How many ranks are in it. ValueError as for `ranks`."""
        return len(self.ranks)

    def rank(self) -> int:
        """This process's index in the set. ValueError when it is not in it, or before init()."""
        own = lifecycle.rank()
        if own not in self.ranks:
            raise ValueError(f"rank {own} is not in {self!r}; ask included() first")
        return self.ranks.index(own)

    def included(self) -> bool:
        """Whether this process is in the set. ValueError before mydist.init()."""
        return lifecycle.rank() in self.ranks

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
        return list(range(lifecycle.size()))

    def size(self) -> int:
        """mydist.size(). Raises ValueError before mydist.init()."""
        return lifecycle.size()

    def rank(self) -> int:
        """mydist.rank(). Raises ValueError before mydist.init()."""
        return lifecycle.rank()

    def included(self) -> bool:
        """True. Raises ValueError before mydist.init()."""
        lifecycle.rank()
        return True

    def __repr__(self) -> str:
        return "ProcessSet(process_set_id=0)"

    def __reduce__(self) -> str:
        return "global_process_set"


global_process_set: ProcessSet = _GlobalProcessSet()


def add_process_set(process_set: ProcessSet | Any) -> ProcessSet:
    """Makes a process set known to the job and returns it. All ranks of the job call it.

    Blocks until they have; ranks make these calls in the same order with the same sets.

    Args:
        process_set: a ProcessSet, or what ProcessSet() takes. From a communicator that differs from
            rank to rank, one set is made for each of the different groups, in the order of their
            smallest ranks; each rank gets the one that it is in.

    Returns:
        The set; the argument itself if that is a ProcessSet. A rank whose communicator is COMM_NULL
        gets the set of the others if there is only one, else an empty one.

    Raises:
        ValueError: a rank is not one of the job, the set has been added already, or another one has
            the same ranks (the text gives its number); or before init().
        TypeError: as for ProcessSet().
        MismatchError: the ranks gave different sets; no set has been added.
        MydistError: the job failed; see mydist.errors.
    """
    added = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    set_table.check_new("add_process_set", [added], lifecycle.size())
    added._membership = set_table.add(added._source)
    return added


def check_process_sets(process_sets: Any) -> list[ProcessSet]:
    """The argument of init() as a list. Raises TypeError or ValueError."""
    if process_sets is None:
        return []
    if isinstance(process_sets, str):
        if process_sets == "dynamic":  # Sets can be added and removed at any time anyway.
            return []
        raise ValueError(
            f"init: process_sets is {process_sets!r}, expected a list of ProcessSet, 'dynamic' or "
            "None"
        )
    if not isinstance(process_sets, (list, tuple)):
        raise TypeError(
            f"init: process_sets is {process_sets!r} ({type(process_sets).__qualname__}), expected "
            "a list of ProcessSet, 'dynamic' or None"
        )
    for i, item in enumerate(process_sets):
        if not isinstance(item, ProcessSet):
            raise TypeError(
                f"init: process_sets[{i}] is {item!r} ({type(item).__qualname__}), expected a "
                "ProcessSet; make one with mydist.ProcessSet(ranks)"
            )
    return list(process_sets)


def add_at_start(process_sets: list[ProcessSet]) -> None:
    """Adds the sets that init() was given, in their order. Collective over the job."""
    set_table.check_new("init", process_sets, lifecycle.size())
    for process_set in process_sets:
        process_set._membership = set_table.add(process_set._source)


def check_added(process_sets: list[ProcessSet]) -> None:
    """Raises ValueError when init(), called once more, was given a set that is not in the job."""
    for process_set in process_sets:
        if process_set._current() is None and process_set is not global_process_set:
            raise ValueError(
                f"init: mydist is initialized already, without {process_set!r}; add it with "
                "mydist.add_process_set()"
            )


def remove_process_set(process_set: ProcessSet) -> None:
    """Ends a process set; its number stands for nothing then. All ranks of the job call it.

    Members wait for each other, other ranks only forget the set. It may be added again. If the set
    came from a communicator, its sibling sets end by the same call on their own ranks.

    Args:
        process_set: what add_process_set() returned, or was given to init().

    Raises:
        ValueError: it is the global set or is not part of the job, or tensors of it are in flight
            (the text names one).
        TypeError: it is no ProcessSet.
        MydistError: the job failed; see mydist.errors.
    """
    if not isinstance(process_set, ProcessSet):
        raise TypeError(
            f"remove_process_set: got {process_set!r} ({type(process_set).__qualname__}), expected "
            "a ProcessSet"
        )
    if isinstance(process_set, _GlobalProcessSet):
        raise ValueError(
            "remove_process_set: the global process set is the job itself and cannot be removed; "
            "mydist.shutdown() leaves the job"
        )
    lifecycle.rank()
    current = process_set._current()
    if current is None:
        raise ValueError(
            f"remove_process_set: {process_set!r} is not part of the job; it was never added, or "
            "has been removed"
        )
    set_table.remove(current)
