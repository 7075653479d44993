"""The collectives that reduce: allreduce, reducescatter and reduce, in all their forms."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..job.process_set import ProcessSet, global_process_set
from ..reduce_op import ReduceOp
from .call import Call, form_of
from .compression import Compression, CompressorLike
from .handles import first, first_if_any

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
]


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: CompressorLike = Compression.none,
) -> torch.Tensor:
    """Returns the reduction of all ranks' tensors; the same bits on every rank.

    The result is `postscale_factor * op over ranks of (prescale_factor * tensor)`; float16 and
    bfloat16 are accumulated in float32 and rounded once. Blocks until all ranks have called it with
    this name.

    Differentiable, as often as wanted, for every op but Adasum (NotImplementedError in backward).
    The gradient is that of the sum of all ranks' losses: for Average and Sum the same reduction of
    the gradients of all ranks' outputs; Min and Max give it to the ranks that hold the extreme, in
    equal parts; Product multiplies it by the product of the other ranks' inputs. Backward
    communicates: `tensor` must require grad on all ranks or none, and all must run backward.

    Args:
        tensor: any shape, equal on all ranks; not changed.
        average: True is op=Average, False op=Sum; give it or `op`.
        name: equal on all ranks; None numbers the calls in order.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        prescale_factor: applied to each input.
        postscale_factor: applied to the result.
        process_set: the ranks that take part; this one is among them.
        compression: what travels instead of the tensor.

    Raises:
        ValueError: bad argument, unsupported kind of tensor, or a name already in flight.
        TypeError: wrong type or unsupported dtype.
        MismatchError: the ranks' tensors or arguments differ; raised on every rank.
        MydistError: the job failed; see mydist.errors.
    """
    scaling = (average, op, prescale_factor, postscale_factor)
    return Call("allreduce", tensor, name, process_set, scaling, compression).run()[0]


@form_of(allreduce)
def allreduce_async(call: Call) -> int:
    """allreduce() that returns a handle for poll() and synchronize(); it waits for no other rank.

    The tensor must not be written until synchronize() has returned, which gives what allreduce()
    would have returned. The result carries no gradient. Arguments and errors as in allreduce().
    The other collectives have such a form, too.
    """
    return call.start(first)


@form_of(allreduce)
def allreduce_(call: Call) -> torch.Tensor:
    """As allreduce(), but the result replaces the contents of `tensor`, which is returned.

    Raises ValueError for a tensor that requires grad while gradients are recorded, and for one
    whose elements share memory (expanded). Arguments and other errors as in allreduce().
    """
    return call.run()[0]


@form_of(allreduce)
def allreduce_async_(call: Call) -> int:
    """As allreduce_async(), in place; the tensor has its new contents once synchronized.

    Arguments and errors as in allreduce_().
    """
    return call.start(first)


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: CompressorLike = Compression.none,
) -> list[torch.Tensor]:
    """allreduce() of several tensors at once: all of them or none, in one step.

    Args:
        tensors: list or tuple, at least one; shapes and dtypes may differ from one another but each
            is equal on all ranks.

    Returns the results in the order of the inputs. Other arguments, gradients and errors as in
    allreduce().
    """
    scaling = (average, op, prescale_factor, postscale_factor)
    return Call("grouped_allreduce", tensors, name, process_set, scaling, compression).run()


@form_of(grouped_allreduce)
def grouped_allreduce_async(call: Call) -> int:
    """grouped_allreduce() that returns one handle for all. See allreduce_async()."""
    return call.start(list)


@form_of(grouped_allreduce)
def grouped_allreduce_(call: Call) -> list[torch.Tensor]:
    """grouped_allreduce() in place; returns the given tensors. See allreduce_()."""
    return call.run()


@form_of(grouped_allreduce)
def grouped_allreduce_async_(call: Call) -> int:
    """grouped_allreduce_() that returns one handle for all. See allreduce_async_()."""
    return call.start(list)


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


@form_of(reducescatter)
def reducescatter_async(call: Call) -> int:
    """reducescatter() that returns a handle. See allreduce_async()."""
    return call.start(first)


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


@form_of(grouped_reducescatter)
def grouped_reducescatter_async(call: Call) -> int:
    """grouped_reducescatter() that returns one handle for all. See reducescatter_async()."""
    return call.start(list)


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
    return first_if_any(call.run())


@form_of(reduce)
def reduce_async(call: Call) -> int:
    """reduce() that returns a handle. See allreduce_async()."""
    return call.start(first_if_any)
