"""alltoall: every rank sends some of its rows to each rank."""

from __future__ import annotations

import torch

from ..job.process_set import ProcessSet, global_process_set
from .arguments import Splits
from .call import Call
from .handles import first

__all__ = ["alltoall", "alltoall_async"]


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
    output, received = Call("alltoall", tensor, name, process_set, splits=splits).run()
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
    call = Call("alltoall_async", tensor, name, process_set, splits=splits)
    return call.start(first if splits is None else tuple)
