"""allgather: every rank gets all ranks' tensors, joined along the first dimension."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _C
from ..job.names import Submitting, resolve_name
from ..job.process_set import ProcessSet, global_process_set
from . import differentiable
from .arguments import check_process_set, check_tensor, check_tensors
from .handles import first, remember

__all__ = ["allgather", "allgather_async", "grouped_allgather", "grouped_allgather_async"]


def allgather(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns all ranks' tensors joined along the first dimension, in rank order.

    Blocks until all ranks have called it with this name. Differentiable.

    Args:
        tensor: any shape; the first dimension may differ from rank to rank (0 is fine), the others
            and the dtype are equal. A 0-d tensor counts as one of length 1.
        name: equal on all ranks; None numbers the calls in order.
        process_set: the ranks that take part; this one is among them.

    Raises:
        ValueError: bad argument, unsupported kind of tensor, or a name already in flight.
        TypeError: wrong type or unsupported dtype.
        MismatchError: the ranks' tensors differ in more than the first dimension.
        MydistError: the job failed; see mydist.errors.
    """
    checked = check_tensor("allgather", tensor)
    set_id = check_process_set("allgather", process_set)
    full_name = resolve_name("allgather", name, set_id)
    with Submitting(full_name):
        if differentiable.needs_gradient([checked]):
            return differentiable.allgather([checked], "", [full_name], process_set)[0]
        return _C.allgather([checked], [full_name], "", set_id)[0]


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Enqueues an allgather and returns a handle for poll() and synchronize().

    Never waits for other ranks. The tensor must not be written until synchronize() has returned.
    The result carries no gradient. Arguments and errors as in allgather().
    """
    checked = check_tensor("allgather_async", tensor)
    set_id = check_process_set("allgather_async", process_set)
    full_name = resolve_name("allgather", name, set_id)
    with Submitting(full_name):
        return remember(_C.enqueue_allgather([checked], [full_name], "", set_id), first)


def grouped_allgather(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """allgather() of several tensors at once: all of them or none, in one step.

    Args:
        tensors: list or tuple, at least one.

    Returns the results in the order of the inputs. Other arguments, gradients and errors as in
    allgather().
    """
    checked = check_tensors("grouped_allgather", tensors)
    set_id = check_process_set("grouped_allgather", process_set)
    group = resolve_name("grouped_allgather", name, set_id)
    names = [f"{group}.{i}" for i in range(len(checked))]
    with Submitting(group):
        if differentiable.needs_gradient(checked):
            return differentiable.allgather(checked, group, names, process_set)
        return _C.allgather(checked, names, group, set_id)


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """grouped_allgather() that returns one handle for all. See allgather_async()."""
    checked = check_tensors("grouped_allgather_async", tensors)
    set_id = check_process_set("grouped_allgather_async", process_set)
    group = resolve_name("grouped_allgather", name, set_id)
    names = [f"{group}.{i}" for i in range(len(checked))]
    with Submitting(group):
        return remember(_C.enqueue_allgather(checked, names, group, set_id), list)
