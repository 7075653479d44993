"""The collectives that move tensors: allgather, broadcast, alltoall, gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..job.process_set import ProcessSet, global_process_set
from .arguments import Splits
from .call import Call, form_of
from .handles import first, first_if_any

__all__ = [
    "allgather",
    "allgather_async",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "gather",
    "gather_async",
    "grouped_allgather",
    "grouped_allgather_async",
    "scatter",
    "scatter_async",
]


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


@form_of(allgather)
def allgather_async(call: Call) -> int:
    """allgather() that returns a handle. See allreduce_async()."""
    return call.start(first)


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


@form_of(grouped_allgather)
def grouped_allgather_async(call: Call) -> int:
    """grouped_allgather() that returns one handle for all. See allgather_async()."""
    return call.start(list)


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


@form_of(broadcast)
def broadcast_async(call: Call) -> int:
    """broadcast() that returns a handle. See allreduce_async()."""
    return call.start(first)


@form_of(broadcast)
def broadcast_(call: Call) -> torch.Tensor:
    """broadcast() in place; returns the given tensor. See allreduce_()."""
    return call.run()[0]


@form_of(broadcast)
def broadcast_async_(call: Call) -> int:
    """broadcast_() that returns a handle. See allreduce_async_()."""
    return call.start(first)


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


@form_of(alltoall)
def alltoall_async(call: Call) -> int:
    """alltoall() that returns a handle. See allreduce_async()."""
    return call.start(first if call.splits is None else tuple)


def gather(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | None:
    """Returns all ranks' tensors on the root, one after the other, and None on the other ranks.

    Blocks until the root has them; other ranks return when their part is done. The result carries
    no gradient, since there is none to start backward from on the other ranks; use allgather()
    where one is wanted.

    Args:
        tensor: all dimensions but the first, and the dtype, are equal on all ranks; a 0-d tensor
            counts as one of length 1. Not changed.
        root_rank: the global rank that gets the result.
        name: equal on all ranks; None numbers the calls in order.
        process_set: the ranks that take part; this one and the root are among them.

    Returns:
        On the root a tensor whose first dimension is the sum of the ranks' first dimensions, in
        rank order; None elsewhere.

    Raises:
        ValueError: bad argument, unsupported kind of tensor, or a name already in flight.
        TypeError: wrong type or unsupported dtype.
        MismatchError: the ranks' roots, or their tensors in more than the first dimension, differ.
        MydistError: the job failed; see mydist.errors.
    """
    call = Call("gather", tensor, name, process_set, root_rank=root_rank)
    return first_if_any(call.run())


@form_of(gather)
def gather_async(call: Call) -> int:
    """gather() that returns a handle. See allreduce_async()."""
    return call.start(first_if_any)


def scatter(
    tensor: torch.Tensor,
    splits: Splits = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Deals the rows of the root's tensor out to the ranks, in rank order; returns this rank's.

    Blocks until this rank has them. Differentiable: the root's gradient is that of all ranks'
    outputs, joined; the other ranks' is zero. As with every collective, the tensor must require
    grad on all ranks or none, and all must run backward.

    Args:
        tensor: at least one dimension. Its values matter on the root only; the other ranks pass any
            tensor of the same dtype that has the same dimensions but for the first, such as
            `torch.empty(0, 3)`. Not changed.
        splits: how many rows each rank of the set gets, summing to the root's first dimension; a
            list of ints or a 1-d integer tensor. None: the same number each, and one more for the
            first ranks when rows are left over, as in reducescatter(). Used on the root only.
        root_rank: the global rank whose rows are dealt out.
        name: equal on all ranks; None numbers the calls in order.
        process_set: the ranks that take part; this one and the root are among them.

    Raises:
        ValueError: bad argument, unsupported kind of tensor, a name already in flight, or splits
            that do not fit the first dimension or the number of ranks.
        TypeError: wrong type or unsupported dtype.
        MismatchError: the ranks' roots, or their tensors in more than the first dimension, differ.
        MydistError: the job failed; see mydist.errors.
    """
    return Call("scatter", tensor, name, process_set, splits=splits, root_rank=root_rank).run()[0]


@form_of(scatter)
def scatter_async(call: Call) -> int:
    """scatter() that returns a handle. See allreduce_async()."""
    return call.start(first)
