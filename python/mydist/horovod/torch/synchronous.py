"""The collectives that wait, with Horovod's gradients.

The gradient of allreduce is the same reduction of the gradients. Those of allgather, broadcast and
reducescatter are means over the ranks, where those of mydist are sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ...collectives import waits
from ...job import topology
from ..common.process_sets import ProcessSet, global_process_set, own_set
from .asynchronous import (
    Average,
    Sum,
    Tensors,
    allgather_async,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    handle_average_backwards_compatibility,
    reducescatter_async,
    synchronize,
)
from .compression import Compression

__all__ = [
    "HorovodAllgather",
    "HorovodAllreduce",
    "HorovodAlltoall",
    "HorovodBroadcast",
    "HorovodGroupedAllgather",
    "HorovodGroupedAllreduce",
    "HorovodGroupedReducescatter",
    "HorovodReducescatter",
    "allgather",
    "allreduce",
    "allreduce_",
    "alltoall",
    "barrier",
    "broadcast",
    "broadcast_",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_reducescatter",
    "join",
    "reducescatter",
]


def _apply(function: Any, *arguments: Any) -> Any:
    return function.apply(*arguments)


class HorovodAllreduce(torch.autograd.Function):
    """allreduce(), differentiable."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.op = handle_average_backwards_compatibility(op, average)
        ctx.rest = (prescale_factor, postscale_factor, process_set)
        result: torch.Tensor = synchronize(allreduce_async(tensor, None, name, ctx.op, *ctx.rest))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        gradient = allreduce(grads[0].contiguous(), None, None, Compression.none, ctx.op, *ctx.rest)
        return gradient, None, None, None, None, None, None


class HorovodGroupedAllreduce(torch.autograd.Function):
    """grouped_allreduce(), differentiable."""

    @staticmethod
    def forward(
        ctx: Any,
        average: bool | None,
        name: str | None,
        op: int | None,
        prescale_factor: float,
        postscale_factor: float,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.op = handle_average_backwards_compatibility(op, average)
        ctx.rest = (prescale_factor, postscale_factor, process_set)
        handle = grouped_allreduce_async(list(tensors), None, name, ctx.op, *ctx.rest)
        results: tuple[torch.Tensor, ...] = synchronize(handle)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        given = [grad.contiguous() for grad in grads]
        gradients = grouped_allreduce(given, None, None, Compression.none, ctx.op, *ctx.rest)
        return (None, None, None, None, None, None, *gradients)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the reduction of all ranks' tensors; differentiable. See mydist.allreduce.

    Raises:
        ValueError: `op` and `average` are both given, or the tensor is of a dtype that is not
            supported, or not contiguous.
        HorovodInternalError: the ranks disagree, or the job has failed.
    """
    wire, context = compression.compress(tensor)
    summed = _apply(
        HorovodAllreduce, wire, average, name, op, prescale_factor, postscale_factor, process_set
    )
    result: torch.Tensor = compression.decompress(summed, context)
    return result


def allreduce_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """As allreduce(), in place and without a gradient; returns the tensor."""
    op = handle_average_backwards_compatibility(op, average)
    result: torch.Tensor = synchronize(
        allreduce_async_(tensor, None, name, op, prescale_factor, postscale_factor, process_set)
    )
    return result


def grouped_allreduce(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """allreduce() of several tensors at once: all of them or none."""
    wires, contexts = zip(*(compression.compress(tensor) for tensor in tensors), strict=True)
    summed = _apply(
        HorovodGroupedAllreduce,
        average,
        name,
        op,
        prescale_factor,
        postscale_factor,
        process_set,
        *wires,
    )
    return [compression.decompress(t, c) for t, c in zip(summed, contexts, strict=True)]


def grouped_allreduce_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> tuple[torch.Tensor, ...]:
    """grouped_allreduce() in place and without a gradient; returns the tensors."""
    op = handle_average_backwards_compatibility(op, average)
    factors = (prescale_factor, postscale_factor)
    handle = grouped_allreduce_async_(tensors, None, name, op, *factors, process_set)
    results: tuple[torch.Tensor, ...] = synchronize(handle)
    return results


def _own_rows(
    gradients: Sequence[torch.Tensor], rows: Sequence[int], process_set: ProcessSet
) -> list[torch.Tensor]:
    """Of each gradient, those rows that come from this rank's input."""
    counts = [torch.tensor([count], dtype=torch.int32, device="cpu") for count in rows]
    before = process_set.rank() or 0
    own = []
    gathered = grouped_allgather(counts, process_set=process_set)
    for gradient, count, of_ranks in zip(gradients, rows, gathered, strict=True):
        own.append(gradient.narrow(0, int(of_ranks[:before].sum()), count))
    return own


class HorovodAllgather(torch.autograd.Function):
    """allgather(), differentiable."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.rows, ctx.process_set = tensor.shape[0], process_set
        result: torch.Tensor = synchronize(allgather_async(tensor, name, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        mean = allreduce(grads[0].contiguous(), op=Average, process_set=ctx.process_set)
        return _own_rows([mean], [ctx.rows], ctx.process_set)[0], None, None


class HorovodGroupedAllgather(torch.autograd.Function):
    """grouped_allgather(), differentiable."""

    @staticmethod
    def forward(
        ctx: Any, name: str | None, process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.rows = [tensor.shape[0] for tensor in tensors]
        ctx.process_set = process_set
        handle = grouped_allgather_async(list(tensors), name, process_set)
        results: tuple[torch.Tensor, ...] = synchronize(handle)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        given = [grad.contiguous() for grad in grads]
        means = grouped_allreduce(given, op=Average, process_set=ctx.process_set)
        return (None, None, *_own_rows(means, ctx.rows, ctx.process_set))


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Returns all ranks' tensors joined along the first dimension; differentiable."""
    result: torch.Tensor = _apply(HorovodAllgather, tensor, name, process_set)
    return result


def grouped_allgather(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> tuple[torch.Tensor, ...]:
    """allgather() of several tensors at once: all of them or none."""
    results: tuple[torch.Tensor, ...] = _apply(HorovodGroupedAllgather, name, process_set, *tensors)
    return results


class HorovodBroadcast(torch.autograd.Function):
    """broadcast(), differentiable."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, process_set: ProcessSet
    ) -> torch.Tensor:
        ctx.root_rank, ctx.process_set = root_rank, process_set
        result: torch.Tensor = synchronize(broadcast_async(tensor, root_rank, name, process_set))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        mean = allreduce(grads[0].contiguous(), op=Average, process_set=ctx.process_set)
        return mean if topology.rank() == ctx.root_rank else mean * 0, None, None, None


def broadcast(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Returns the tensor of the rank `root_rank` of the job on every rank; differentiable."""
    result: torch.Tensor = _apply(HorovodBroadcast, tensor, root_rank, name, process_set)
    return result


def broadcast_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """broadcast() in place and without a gradient; returns the tensor."""
    result: torch.Tensor = synchronize(broadcast_async_(tensor, root_rank, name, process_set))
    return result


class HorovodAlltoall(torch.autograd.Function):
    """alltoall(), differentiable."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, process_set: ProcessSet
    ) -> Any:
        output, received = synchronize(alltoall_async(tensor, splits, name, process_set))
        ctx.received, ctx.process_set = received, process_set
        if splits is None:
            return output
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        gradient, _ = alltoall(grads[0].contiguous(), ctx.received, process_set=ctx.process_set)
        return gradient, None, None, None


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Gives each rank some rows; returns those that came, and with `splits` how many from each."""
    return _apply(HorovodAlltoall, tensor, splits, name, process_set)


def _factors(op: int, before: float, after: float, process_set: ProcessSet) -> list[float]:
    """What a gradient is multiplied by, one after the other."""
    size = float(process_set.size() or 1) if op == Sum else 1.0
    return [factor for factor in (size, before, after) if factor != 1.0]


def _scaled(gradient: torch.Tensor, factors: Sequence[float]) -> torch.Tensor:
    for factor in factors:
        gradient = gradient * factor
    return gradient.contiguous()


class HorovodReducescatter(torch.autograd.Function):
    """reducescatter(), differentiable."""

    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
    ) -> torch.Tensor:
        rest = (process_set, prescale_factor, postscale_factor)
        ctx.process_set = process_set
        ctx.factors = _factors(op, prescale_factor, postscale_factor, process_set)
        result: torch.Tensor = synchronize(reducescatter_async(tensor, name, op, *rest))
        return result

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        gradient = allgather(_scaled(grads[0], ctx.factors), process_set=ctx.process_set)
        return gradient, None, None, None, None, None


class HorovodGroupedReducescatter(torch.autograd.Function):
    """grouped_reducescatter(), differentiable."""

    @staticmethod
    def forward(
        ctx: Any,
        name: str | None,
        op: int,
        process_set: ProcessSet,
        prescale_factor: float,
        postscale_factor: float,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        rest = (process_set, prescale_factor, postscale_factor)
        ctx.process_set = process_set
        ctx.factors = _factors(op, prescale_factor, postscale_factor, process_set)
        handle = grouped_reducescatter_async(list(tensors), name, op, *rest)
        results: tuple[torch.Tensor, ...] = synchronize(handle)
        return results

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> Any:
        given = [_scaled(grad, ctx.factors) for grad in grads]
        gradients = grouped_allgather(given, process_set=ctx.process_set)
        return (None, None, None, None, None, *gradients)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Returns this rank's rows of the reduction of all ranks' tensors; differentiable."""
    wire, context = compression.compress(tensor)
    factors = (prescale_factor, postscale_factor)
    reduced = _apply(HorovodReducescatter, wire, name, op, process_set, *factors)
    result: torch.Tensor = compression.decompress(reduced, context)
    return result


def grouped_reducescatter(
    tensors: Tensors,
    name: str | None = None,
    compression: Any = Compression.none,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """reducescatter() of several tensors at once: all of them or none."""
    wires, contexts = zip(*(compression.compress(tensor) for tensor in tensors), strict=True)
    factors = (prescale_factor, postscale_factor)
    reduced = _apply(HorovodGroupedReducescatter, name, op, process_set, *factors, *wires)
    return [compression.decompress(t, c) for t, c in zip(reduced, contexts, strict=True)]


def join(device: int = -1) -> int:
    """Takes part in the collectives of the others with zeros until all have called it.

    Returns the rank that called it last. `device` is not needed.
    """
    own_set(global_process_set)
    return waits.join()


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Returns when every rank of the set has called it."""
    waits.barrier(process_set=own_set(process_set))
