"""allreduce in all its forms: every rank gets the reduction of all ranks' tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from .. import _C
from ..job.names import Submitting, give_back, resolve_name
from ..job.process_set import ProcessSet, global_process_set
from ..reduce_op import ReduceOp
from . import differentiable
from .arguments import (
    Reduction,
    check_process_set,
    check_tensor,
    check_tensors,
    refuse_in_place_on_gradient,
    resolve_reduction,
)
from .compressed_calls import record_compressed, start_compressed
from .compression import Compression, CompressorLike, split_compression
from .handles import Finish, first

__all__ = [
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
]


_Answer = TypeVar("_Answer")


def _submit(
    submit: Callable[..., _Answer],
    tensors: list[torch.Tensor],
    group: str,
    names: list[str],
    reduction: Reduction,
    process_set: int,
    in_place: bool,
    cast: int,
) -> _Answer:
    try:
        return submit(
            tensors,
            tensors if in_place else None,
            names,
            group,
            int(reduction.op),
            reduction.prescale,
            reduction.postscale,
            process_set,
            cast,
        )
    except Exception as error:  # as Submitting, which would be slower
        give_back(group or names[0], error)
        raise


def _start(
    tensors: list[torch.Tensor],
    group: str,
    names: list[str],
    reduction: Reduction,
    process_set: int,
    compression: CompressorLike,
    finish: Finish,
    in_place: bool,
) -> int:
    compression, cast = split_compression(tensors, compression)
    in_memory = in_place and compression is Compression.none

    def enqueue(inputs: list[torch.Tensor]) -> int:
        return _submit(
            _C.enqueue_allreduce, inputs, group, names, reduction, process_set, in_memory, cast
        )

    def finish_in_place(results: list[torch.Tensor]) -> Any:
        return finish([t.copy_(r) for t, r in zip(tensors, results, strict=True)])

    copies = in_place and not in_memory
    call = ("allreduce", group or names[0])
    return start_compressed(
        call, tensors, compression, enqueue, finish_in_place if copies else finish
    )


def _fetch(
    tensors: list[torch.Tensor],
    group: str,
    names: list[str],
    reduction: Reduction,
    process_set: int,
    compression: CompressorLike,
    in_place: bool,
) -> list[torch.Tensor]:
    """The synchronous form without autograd."""
    compression, cast = split_compression(tensors, compression)
    if compression is Compression.none:
        return _submit(_C.allreduce, tensors, group, names, reduction, process_set, in_place, cast)

    def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        return _submit(_C.allreduce, inputs, group, names, reduction, process_set, False, 0)

    with torch.no_grad():
        call = ("allreduce", group or names[0])
        results = record_compressed(call, tensors, compression, run)
        if not in_place:
            return results
        return [t.copy_(r) for t, r in zip(tensors, results, strict=True)]


def _run(
    tensors: list[torch.Tensor],
    group: str,
    names: list[str],
    reduction: Reduction,
    process_set: ProcessSet,
    compression: CompressorLike,
) -> list[torch.Tensor]:
    """The synchronous form, through autograd when a gradient may be asked for."""
    if not differentiable.needs_gradient(tensors):
        set_id = process_set.process_set_id
        return _fetch(tensors, group, names, reduction, set_id, compression, False)

    def record(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        with Submitting(group or names[0]):
            return differentiable.allreduce(inputs, group, names, reduction, process_set)

    return record_compressed(("allreduce", group or names[0]), tensors, compression, record)


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
    reduction = resolve_reduction("allreduce", average, op, prescale_factor, postscale_factor)
    tensors = [check_tensor("allreduce", tensor)]
    set_id = check_process_set("allreduce", process_set)
    names = [resolve_name("allreduce", name, set_id)]
    return _run(tensors, "", names, reduction, process_set, compression)[0]


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: CompressorLike = Compression.none,
) -> int:
    """Enqueues an allreduce and returns a handle for poll() and synchronize().

    Never waits for other ranks. The tensor must not be written until synchronize() has returned.
    The result carries no gradient. Arguments and errors as in allreduce().
    """
    call = "allreduce_async"
    reduction = resolve_reduction(call, average, op, prescale_factor, postscale_factor)
    tensors = [check_tensor(call, tensor)]
    set_id = check_process_set(call, process_set)
    names = [resolve_name("allreduce", name, set_id)]
    return _start(tensors, "", names, reduction, set_id, compression, first, False)


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: CompressorLike = Compression.none,
) -> torch.Tensor:
    """As allreduce(), but the result replaces the contents of `tensor`, which is returned.

    Raises ValueError for a tensor that requires grad while gradients are recorded, and for one
    whose elements share memory (expanded). Arguments and other errors as in allreduce().
    """
    call = "allreduce_"
    reduction = resolve_reduction(call, average, op, prescale_factor, postscale_factor)
    tensors = [check_tensor(call, tensor)]
    refuse_in_place_on_gradient(call, tensors, "allreduce")
    set_id = check_process_set(call, process_set)
    names = [resolve_name("allreduce", name, set_id)]
    return _fetch(tensors, "", names, reduction, set_id, compression, True)[0]


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: CompressorLike = Compression.none,
) -> int:
    """As allreduce_async(), in place; the tensor has its new contents once synchronized.

    Arguments and errors as in allreduce_().
    """
    call = "allreduce_async_"
    reduction = resolve_reduction(call, average, op, prescale_factor, postscale_factor)
    tensors = [check_tensor(call, tensor)]
    refuse_in_place_on_gradient(call, tensors, "allreduce")
    set_id = check_process_set(call, process_set)
    names = [resolve_name("allreduce", name, set_id)]
    return _start(tensors, "", names, reduction, set_id, compression, first, True)


def _members(
    name: str | None, tensors: list[torch.Tensor], process_set: int
) -> tuple[str, list[str]]:
    """The name of the group and those of its tensors."""
    group = resolve_name("grouped_allreduce", name, process_set)
    return group, [f"{group}.{i}" for i in range(len(tensors))]


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
    call = "grouped_allreduce"
    reduction = resolve_reduction(call, average, op, prescale_factor, postscale_factor)
    checked = check_tensors(call, tensors)
    set_id = check_process_set(call, process_set)
    group, names = _members(name, checked, set_id)
    return _run(checked, group, names, reduction, process_set, compression)


def grouped_allreduce_async(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: CompressorLike = Compression.none,
) -> int:
    """grouped_allreduce() that returns one handle for all. See allreduce_async()."""
    call = "grouped_allreduce_async"
    reduction = resolve_reduction(call, average, op, prescale_factor, postscale_factor)
    checked = check_tensors(call, tensors)
    set_id = check_process_set(call, process_set)
    group, names = _members(name, checked, set_id)
    return _start(checked, group, names, reduction, set_id, compression, list, False)


def grouped_allreduce_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: CompressorLike = Compression.none,
) -> list[torch.Tensor]:
    """grouped_allreduce() in place; returns the given tensors. See allreduce_()."""
    call = "grouped_allreduce_"
    reduction = resolve_reduction(call, average, op, prescale_factor, postscale_factor)
    checked = check_tensors(call, tensors)
    refuse_in_place_on_gradient(call, checked, "grouped_allreduce")
    set_id = check_process_set(call, process_set)
    group, names = _members(name, checked, set_id)
    return _fetch(checked, group, names, reduction, set_id, compression, True)


def grouped_allreduce_async_(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
    compression: CompressorLike = Compression.none,
) -> int:
    """grouped_allreduce_() that returns one handle for all. See allreduce_async_()."""
    call = "grouped_allreduce_async_"
    reduction = resolve_reduction(call, average, op, prescale_factor, postscale_factor)
    checked = check_tensors(call, tensors)
    refuse_in_place_on_gradient(call, checked, "grouped_allreduce")
    set_id = check_process_set(call, process_set)
    group, names = _members(name, checked, set_id)
    return _start(checked, group, names, reduction, set_id, compression, list, True)
