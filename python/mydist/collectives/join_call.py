"""join: a rank that has run out of data lets the others finish theirs."""

from __future__ import annotations

from .. import _C
from ..job import topology
from ..job.names import restart_names
from .arguments import check_int

__all__ = ["join"]

_join_count = 0


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
    last_rank = int(_C.wait(_C.enqueue_join())[0])
    # The ranks have made different numbers of calls and steps; from here on all count alike.
    _join_count += 1
    restart_names()
    return last_rank


def join_count() -> int:
    """How many times all ranks have joined, in this process."""
    return _join_count
