"""reducescatter: the reduction of all ranks' tensors, each rank getting some of its rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from .. import _C
from ..job.names import Submitting, resolve_name
from ..job.process_set import ProcessSet, global_process_set
from ..reduce_op import ReduceOp
from . import differentiable
from .arguments import (
    Reduction,
    check_process_set,
    check_tensor,
    check_tensors,
    resolve_reduction,
)
from .compressed_calls import record_compressed, start_compressed
from .compression import Compression, CompressorLike
from .handles import Finish, first

__all__ = [
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "reducescatter",
    "reducescatter_async",
]


_Answer = TypeVar("_Answer")


def _start(
    tensors: list[torch.Tensor],
    group: str,
    names: list[str],
    reduction: Reduction,
    process_set: int,
    compression: CompressorLike,
    finish: Finish,
) -> int:
    def enqueue(inputs: list[torch.Tensor]) -> int:
        return _submit(_C.enqueue_reducescatter, inputs, group, names, reduction, process_set)

    call = ("reducescatter", group or names[0])
    return start_compressed(call, tensors, compression, enqueue, finish)


def _submit(
    submit: Callable[..., _Answer],
    tensors: list[torch.Tensor],
    group: str,
    names: list[str],
    reduction: Reduction,
    process_set: int,
) -> _Answer:
    with Submitting(group or names[0]):
        return submit(
            tensors,
            names,
            group,
            int(reduction.op),
            reduction.prescale,
            reduction.postscale,
            process_set,
        )


def _run(
    tensors: list[torch.Tensor],
    group: str,
    names: list[str],
    reduction: Reduction,
    process_set: ProcessSet,
    compression: CompressorLike,
) -> list[torch.Tensor]:
    """The synchronous form, through autograd when a gradient may be asked for."""
    call = ("reducescatter", group or names[0])
    if not differentiable.needs_gradient(tensors):
        set_id = process_set.process_set_id

        def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            return _submit(_C.reducescatter, inputs, group, names, reduction, set_id)

        with torch.no_grad():
            return record_compressed(call, tensors, compression, run)

    def record(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        with Submitting(group or names[0]):
            return differentiable.reducescatter(inputs, group, names, reduction, process_set)

    return record_compressed(call, tensors, compression, record)


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
    call = "reducescatter"
    reduction = resolve_reduction(call, None, op, prescale_factor, postscale_factor)
    tensors = [check_tensor(call, tensor)]
    set_id = check_process_set(call, process_set)
    return _run(
        tensors, "", [resolve_name(call, name, set_id)], reduction, process_set, compression
    )[0]


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
    call = "reducescatter_async"
    reduction = resolve_reduction(call, None, op, prescale_factor, postscale_factor)
    tensors = [check_tensor(call, tensor)]
    set_id = check_process_set(call, process_set)
    names = [resolve_name("reducescatter", name, set_id)]
    return _start(tensors, "", names, reduction, set_id, compression, first)


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
    call = "grouped_reducescatter"
    reduction = resolve_reduction(call, None, op, prescale_factor, postscale_factor)
    checked = check_tensors(call, tensors)
    set_id = check_process_set(call, process_set)
    group = resolve_name(call, name, set_id)
    names = [f"{group}.{i}" for i in range(len(checked))]
    return _run(checked, group, names, reduction, process_set, compression)


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
    call = "grouped_reducescatter_async"
    reduction = resolve_reduction(call, None, op, prescale_factor, postscale_factor)
    checked = check_tensors(call, tensors)
    set_id = check_process_set(call, process_set)
    group = resolve_name("grouped_reducescatter", name, set_id)
    names = [f"{group}.{i}" for i in range(len(checked))]
    return _start(checked, group, names, reduction, set_id, compression, list)
