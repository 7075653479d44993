"""reducescatter: the reduction of all ranks' tensors, each rank getting some of its rows."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..job.process_set import ProcessSet, global_process_set
from ..reduce_op import ReduceOp
from .call import Call
from .compression import Compression, CompressorLike
from .handles import first

__all__ = [
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: CompressorLike = Compression.none,
) -> torch.Tensor:
    """Returns this rank's rows of the reduction of all ranks' tensors.

    With n ranks and d rows, each rank gets d // n rows in rank order and the first d % n ranks one
    more. Blocks until all ranks have called it with this name. Differentiable for every op but
    Adasum, as allreduce() is.

    Args:
        tensor: at least one dimension; equal shape and dtype on all ranks; not changed.
        name: equal on all ranks; None numbers the calls in order.
        op: Average (default), Sum, Min, Max or Product.
        prescale_factor: applied to each input.
        postscale_factor: applied to the result.
        process_set: the ranks that take part; this one is among them.
        compression: what travels instead of the tensor; it must keep the rows.

    Raises:
        ValueError: bad argument, unsupported kind of tensor, or a name already in flight.
        TypeError: wrong type or unsupported dtype.
        MismatchError: the ranks' tensors or arguments differ; raised on every rank.
        MydistError: the job failed; see mydist.errors.
    """
    scaling = (None, op, prescale_factor, postscale_factor)
    return Call("reducescatter", tensor, name, process_set, scaling, compression).run()[0]


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: CompressorLike = Compression.none,
) -> int:
    """Enqueues a reducescatter and returns a handle for poll() and synchronize().

    Never waits for other ranks. The tensor must not be written until synchronize() has returned.
    The result carries no gradient. Arguments and errors as in reducescatter().
    """
    scaling = (None, op, prescale_factor, postscale_factor)
    return Call("reducescatter_async", tensor, name, process_set, scaling, compression).start(first)


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: CompressorLike = Compression.none,
) -> list[torch.Tensor]:
    """reducescatter() of several tensors at once: all of them or none, in one step.

    Args:
        tensors: list or tuple, at least one.

    Returns the results in the order of the inputs. Other arguments, gradients and errors as in
    reducescatter().
    """
    scaling = (None, op, prescale_factor, postscale_factor)
    return Call("grouped_reducescatter", tensors, name, process_set, scaling, compression).run()


def grouped_reducescatter_async(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: CompressorLike = Compression.none,
) -> int:
    """grouped_reducescatter() that returns one handle for all. See reducescatter_async()."""
    scaling = (None, op, prescale_factor, postscale_factor)
    call = Call("grouped_reducescatter_async", tensors, name, process_set, scaling, compression)
    return call.start(list)
