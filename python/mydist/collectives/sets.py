"""Calls of all ranks that make process sets part of the job, and end them."""

from __future__ import annotations

from typing import Any

from ..job import set_table, topology
from ..job.error_text import wrong_type
from ..job.process_set import ProcessSet, add_to_job, global_process_set

# The sets themselves, too: this module is mydist.process_set for users.
__all__ = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]


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
    add_to_job("add_process_set", [added])
    return added


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
        raise wrong_type("remove_process_set: process_set", process_set, "a ProcessSet")
    if process_set is global_process_set:
        raise ValueError(
            "remove_process_set: the global process set is the job itself and cannot be removed; "
            "mydist.shutdown() leaves the job"
        )
    topology.rank()
    current = process_set._current()
    if current is None:
        raise ValueError(
            f"remove_process_set: {process_set!r} is not part of the job; it was never added, or "
            "has been removed"
        )
    set_table.remove(current)
