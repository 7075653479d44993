"""barrier and join: calls in which ranks wait for each other and move no tensor."""

from __future__ import annotations

from collections.abc import Callable

from .. import _C
from ..job import topology
from ..job.names import resolve_name, restart_names, submit
from ..job.process_set import ProcessSet, global_process_set
from .arguments import check_int, check_process_set, refusal_noted

__all__ = ["barrier", "join"]

_join_count = 0
_before_join: list[Callable[[], None]] = []


def when_joining(call: Callable[[], None]) -> None:
    """From now on join() calls it before it waits."""
    _before_join.append(call)


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it. Does not wait for other sets.

    Args:
        process_set: the ranks that take part; this one is among them.

    Raises:
        ValueError: before mydist.init(), or this rank is not in the set.
        TypeError: `process_set` is no ProcessSet.
        MydistError: the job failed; see mydist.errors.
    """
    with refusal_noted("barrier", None, process_set):
        set_id = check_process_set("barrier", process_set)
    name = resolve_name("barrier", None, set_id)
    submit(name, _C.barrier, name, set_id)


def join(device: int = -1) -> int:
    """Says that this rank has no more data, and waits until all ranks have said so.

    Until then the collectives of the others go on without it: the rank takes part with nothing, or
    with values that do not change a reduction (0 for Sum, 1 for Product, the largest for Min, …).
    Average divides by all ranks of the process set, those that joined included, as Horovod does.
    What only a joined rank could give, such as a broadcast from it, is an error that names it; what
    it would have received as the root of a reduce or gather is dropped.

    Args:
        device: accepted for scripts written for Horovod; -1, or the index of a GPU. Not used.

    Returns:
        The rank that joined last, the same on all ranks. Its parameters are the most trained ones:
        broadcast from it.

    Raises:
        ValueError: `device` is below -1, or before mydist.init().
        TypeError: `device` is no int.
        MydistError: the job failed; see mydist.errors.
    """
    if check_int("join", "device", device) < -1:
        raise ValueError(f"join: device is {device}, expected -1 or the index of a GPU")
    topology.refuse_in_child("join")
    global _join_count
    for call in _before_join:
        call()
    last_rank = int(_C.wait(_C.enqueue_join())[0])
    # The ranks have made different numbers of calls and steps; from here on all count alike.
    _join_count += 1
    restart_names()
    return last_rank


def join_count() -> int:
    """How many times all ranks have joined, in this process."""
    return _join_count
