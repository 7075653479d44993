"""allgather: every rank gets all ranks' tensors, joined along the first dimension."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..job.process_set import ProcessSet, global_process_set
from .call import Call
from .handles import first

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
    return Call("allgather", tensor, name, process_set).run()[0]


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Enqueues an allgather and returns a handle for poll() and synchronize().

    Never waits for other ranks. The tensor must not be written until synchronize() has returned.
    The result carries no gradient. Arguments and errors as in allgather().
    """
    return Call("allgather_async", tensor, name, process_set).start(first)


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
    return Call("grouped_allgather", tensors, name, process_set).run()


def grouped_allgather_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """grouped_allgather() that returns one handle for all. See allgather_async()."""
    return Call("grouped_allgather_async", tensors, name, process_set).start(list)
