"""barrier: waits for all ranks of a process set."""

from __future__ import annotations

from .. import _C
from ..job.names import Submitting, resolve_name
from ..job.process_set import ProcessSet, global_process_set
from .arguments import check_process_set

__all__ = ["barrier"]


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it. Does not wait for other sets.

    Args:
        process_set: the ranks that take part; this one is among them.

    Raises:
        ValueError: before mydist.init(), or this rank is not in the set.
        TypeError: `process_set` is no ProcessSet.
        MydistError: the job failed; see mydist.errors.
    """
    set_id = check_process_set("barrier", process_set)
    name = resolve_name("barrier", None, set_id)
    with Submitting(name):
        _C.barrier(name, set_id)
