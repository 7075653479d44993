"""reduce, gather and scatter: one rank, the root, gets or gives what the others do not."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..job.process_set import ProcessSet, global_process_set
from ..reduce_op import ReduceOp
from .arguments import Splits
from .call import Call
from .handles import first

__all__ = ["gather", "gather_async", "reduce", "reduce_async", "scatter", "scatter_async"]


def _first_if_any(outputs: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Only the root has an output."""
    return outputs[0] if outputs else None


def reduce(
    tensor: torch.Tensor,
    root_rank: int,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor | None:
    """Returns the reduction of all ranks' tensors on the root, and None on the other ranks.

    As allreduce(), but only the root gets the result. It has the same bits there. Blocks until the
    root has it; other ranks return when their part is done. The result carries no gradient, since
    there is none to start backward from on the other ranks; use allreduce() where one is wanted.

    Args:
        tensor: any shape, equal on all ranks; not changed.
        root_rank: the global rank that gets the result.
        average: True is op=Average, False op=Sum; give it or `op`.
        name: equal on all ranks; None numbers the calls in order.
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor: applied to each input.
        postscale_factor: applied to the result.
        process_set: the ranks that take part; this one and the root are among them.

    Raises:
        ValueError: bad argument, unsupported kind of tensor, or a name already in flight.
        TypeError: wrong type or unsupported dtype.
        MismatchError: the ranks' tensors, arguments or roots differ; raised on every rank.
        MydistError: the job failed; see mydist.errors.
    """
    scaling = (average, op, prescale_factor, postscale_factor)
    call = Call("reduce", tensor, name, process_set, scaling, root_rank=root_rank)
    return _first_if_any(call.run())


def reduce_async(
    tensor: torch.Tensor,
    root_rank: int,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Enqueues a reduce and returns a handle for poll() and synchronize().

    Never waits for other ranks. The tensor must not be written until synchronize() has returned.
    Arguments and errors as in reduce().
    """
    scaling = (average, op, prescale_factor, postscale_factor)
    call = Call("reduce", tensor, name, process_set, scaling, root_rank=root_rank)
    return call.start(_first_if_any)


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
    return _first_if_any(call.run())


def gather_async(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Enqueues a gather and returns a handle for poll() and synchronize().

    Never waits for other ranks. The tensor must not be written until synchronize() has returned.
    Arguments and errors as in gather().
    """
    return Call("gather", tensor, name, process_set, root_rank=root_rank).start(_first_if_any)


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


def scatter_async(
    tensor: torch.Tensor,
    splits: Splits = None,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Enqueues a scatter and returns a handle for poll() and synchronize().

    Never waits for other ranks. The root's tensor must not be written until synchronize() has
    returned. Arguments and errors as in scatter().
    """
    call = Call("scatter", tensor, name, process_set, splits=splits, root_rank=root_rank)
    return call.start(first)
