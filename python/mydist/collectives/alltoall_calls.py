"""alltoall: every rank sends some of its rows to each rank."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _C
from ..job.names import Submitting, resolve_name
from ..job.process_set import ProcessSet, global_process_set
from . import differentiable
from .arguments import check_process_set, check_tensor
from .handles import first, remember

__all__ = ["alltoall", "alltoall_async"]

Splits = Sequence[int] | torch.Tensor | None


def check_splits(call: str, splits: object) -> list[int] | None:
    """The argument as a list of numbers of rows. Raises TypeError or ValueError."""
    if splits is None:
        return None
    if isinstance(splits, torch.Tensor):
        is_integer = not (splits.is_floating_point() or splits.is_complex())
        if splits.dim() != 1 or not is_integer or splits.dtype == torch.bool:
            raise ValueError(
                f"{call}: splits is a {splits.dtype} tensor of shape {list(splits.shape)}, "
                "expected integers in one dimension, one entry for each rank"
            )
        return [int(count) for count in splits.tolist()]
    if not isinstance(splits, (list, tuple)):
        raise TypeError(
            f"{call}: splits is {type(splits).__qualname__}, expected a list of ints, a 1-d "
            "integer tensor or None"
        )
    for i, count in enumerate(splits):
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"{call}: splits[{i}] is {count!r}, expected an int")
        if not -(2**63) <= int(count.__index__()) < 2**63:
            raise ValueError(f"{call}: splits[{i}] is {count}, expected a number of rows")
    return [int(count.__index__()) for count in splits]


def alltoall(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Sends consecutive rows of the tensor to the ranks, in rank order, and returns what arrives.

    Blocks until all ranks have called it with this name. Differentiable.

    Args:
        tensor: at least one dimension; all but the first, and the dtype, are equal on all ranks.
        splits: how many rows go to each rank, one entry per rank, summing to the first dimension;
            a list of ints or a 1-d integer tensor. None: the same number to each.
        name: equal on all ranks; None numbers the calls in order.
        process_set: the ranks that take part; this one is among them.

    Returns:
        The rows received, in the order of the ranks that sent them; with `splits` given, that and
        a 1-d int64 tensor with the number of rows from each rank.

    Raises:
        ValueError: bad argument, unsupported kind of tensor, a name already in flight, or a first
            dimension that does not fit the splits or the number of ranks.
        TypeError: wrong type or unsupported dtype.
        MismatchError: the ranks' tensors differ in more than the first dimension.
        MydistError: the job failed; see mydist.errors.
    """
    checked = check_tensor("alltoall", tensor)
    rows = check_splits("alltoall", splits)
    set_id = check_process_set("alltoall", process_set)
    full_name = resolve_name("alltoall", name, set_id)
    with Submitting(full_name):
        if differentiable.needs_gradient([checked]):
            output, received = differentiable.alltoall(checked, rows, full_name, process_set)
        else:
            output, received = _C.alltoall(checked, rows, full_name, set_id)
    return output if splits is None else (output, received)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Enqueues an alltoall and returns a handle for poll() and synchronize().

    Never waits for other ranks. The tensor must not be written until synchronize() has returned.
    The result carries no gradient. Arguments and errors as in alltoall().
    """
    call = "alltoall_async"
    checked = check_tensor(call, tensor)
    rows = check_splits(call, splits)
    set_id = check_process_set(call, process_set)
    full_name = resolve_name("alltoall", name, set_id)
    with Submitting(full_name):
        handle = _C.enqueue_alltoall(checked, rows, full_name, set_id)
    return remember(handle, first if splits is None else tuple)
