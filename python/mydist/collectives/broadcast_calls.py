"""broadcast in all its forms: every rank gets one rank's tensor."""

from __future__ import annotations

import torch

from ..job.process_set import ProcessSet, global_process_set
from .call import Call
from .handles import first

__all__ = ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"]


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the root's tensor on every rank.

    Blocks until all ranks have called it with this name. Differentiable: the root's gradient is the
    sum of all ranks' output gradients, the other ranks' is zero.

    Args:
        tensor: any shape, equal on all ranks; its values matter on the root only. Not changed.
        root_rank: the global rank that gives the values.
        name: equal on all ranks; None numbers the calls in order.
        process_set: the ranks that take part; this one is among them.

    Raises:
        ValueError: bad argument, unsupported kind of tensor, or a name already in flight.
        TypeError: wrong type or unsupported dtype.
        MismatchError: the ranks' tensors or roots differ; raised on every rank.
        MydistError: the job failed; see mydist.errors.
    """
    return Call("broadcast", tensor, name, process_set, root_rank=root_rank).run()[0]


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Enqueues a broadcast and returns a handle for poll() and synchronize().

    Never waits for other ranks. The tensor must not be written until synchronize() has returned.
    The result carries no gradient. Arguments and errors as in broadcast().
    """
    return Call("broadcast_async", tensor, name, process_set, root_rank=root_rank).start(first)


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As broadcast(), but the root's values replace the contents of `tensor`, which is returned.

    Raises ValueError for a tensor that requires grad while gradients are recorded, and for one
    whose elements share memory (expanded). Arguments and other errors as in broadcast().
    """
    return Call("broadcast_", tensor, name, process_set, root_rank=root_rank).run()[0]


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As broadcast_async(), in place; the tensor has its new contents once synchronized.

    Arguments and errors as in broadcast_().
    """
    return Call("broadcast_async_", tensor, name, process_set, root_rank=root_rank).start(first)
