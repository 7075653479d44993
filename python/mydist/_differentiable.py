"""Autograd through the collectives: each backward is the adjoint of its forward.

A collective is a linear map from all ranks' inputs to all ranks' outputs (Min, Max and Product are
not, and have no gradient in this version). Its adjoint takes the gradients of all outputs to those
of all inputs and is again a collective:

    allreduce      y_r = c * sum over i of x_i           dx_i = c * sum over r of dy_r
    allgather      y_r = x_0, x_1, …                     dx_i = sum over r of rows i of dy_r
    broadcast      y_r = x_root                          dx_root = sum over r of dy_r, else 0
    alltoall       rows of x_i for r → y_r               the same with the received splits
    reducescatter  y_r = c * rows r of sum over i of x_i  dx_i = c * (dy_0, dy_1, …)

Backward communicates as well, so all ranks must run backward through the same calls in one order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from . import _C, _lifecycle
from ._arguments import Reduction
from .reduce_op import Average, Sum

_Gradients = tuple[torch.Tensor | None, ...]


def needs_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the outputs of a call on these tensors have to be recorded."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _gradient_names(names: Sequence[str]) -> list[str]:
    return [f"{name}.gradient" for name in names]


def _gradient_group(group: str) -> str:
    return f"{group}.gradient" if group else ""


def _refuse(call: str, reduction: Reduction) -> None:
    if reduction.op not in (Average, Sum):
        raise NotImplementedError(
            f"{call} with op {reduction.op} has no gradient in this version; use Sum or Average, "
            "or detach() the input"
        )


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: str,
        names: list[str],
        reduction: Reduction,
        process_set: int,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.call = (group, names, reduction, process_set)
        handle = _C.enqueue_allreduce(
            tensors,
            None,
            names,
            group,
            int(reduction.op),
            reduction.prescale,
            reduction.postscale,
            process_set,
        )
        return tuple(_C.wait(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> _Gradients:
        group, names, reduction, process_set = ctx.call
        _refuse("allreduce", reduction)
        results = allreduce(
            list(gradients),
            _gradient_group(group),
            _gradient_names(names),
            reduction,
            process_set,
        )
        return (None, None, None, None, *results)


def allreduce(
    tensors: list[torch.Tensor],
    group: str,
    names: list[str],
    reduction: Reduction,
    process_set: int,
) -> list[torch.Tensor]:
    """Recorded allreduce of one group."""
    return list(_Allreduce.apply(group, names, reduction, process_set, *tensors))  # type: ignore[no-untyped-call]


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, group: str, names: list[str], process_set: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        ctx.call = (names, process_set)
        ctx.shapes = [tensor.shape for tensor in tensors]
        return tuple(_C.wait(_C.enqueue_allgather(tensors, names, group, process_set)))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> _Gradients:
        names, process_set = ctx.call
        rows = [shape[0] if shape else 1 for shape in ctx.shapes]
        # Row i: how many rows each rank contributed to tensor i.
        splits = _gather_rows(rows, f"{names[0]}.rows", process_set)
        results: list[torch.Tensor | None] = []
        for i, gradient in enumerate(gradients):
            name = f"{names[i]}.gradient"
            handle = _C.enqueue_alltoall(gradient, splits[i], name, process_set)
            pieces = _C.wait(handle)[0]
            stacked = pieces.reshape(len(splits[i]), *(ctx.shapes[i] or (1,)))
            results.append(stacked.sum(0).reshape(ctx.shapes[i]))
        return (None, None, None, *results)


def _gather_rows(rows: list[int], name: str, process_set: int) -> list[list[int]]:
    mine = torch.tensor([rows], dtype=torch.int64)
    gathered = _C.wait(_C.enqueue_allgather([mine], [name], "", process_set))[0]
    return [[int(count) for count in column] for column in gathered.t().tolist()]


def allgather(
    tensors: list[torch.Tensor], group: str, names: list[str], process_set: int
) -> list[torch.Tensor]:
    """Recorded allgather of one group."""
    return list(_Allgather.apply(group, names, process_set, *tensors))  # type: ignore[no-untyped-call]


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, root_rank: int, name: str, process_set: int
    ) -> torch.Tensor:
        ctx.call = (root_rank, name, process_set)
        return _C.wait(_C.enqueue_broadcast(tensor, None, root_rank, name, process_set))[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> _Gradients:
        root_rank, name, process_set = ctx.call
        total = allreduce(
            list(gradients), "", _gradient_names([name]), Reduction(Sum, 1.0, 1.0), process_set
        )[0]
        is_root = _lifecycle.rank() == root_rank
        return (total if is_root else torch.zeros_like(total), None, None, None)


def broadcast(tensor: torch.Tensor, root_rank: int, name: str, process_set: int) -> torch.Tensor:
    """Recorded broadcast."""
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
    return result


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, splits: list[int] | None, name: str, process_set: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output, received = _C.wait(_C.enqueue_alltoall(tensor, splits, name, process_set))
        ctx.call = (received.tolist(), name, process_set)
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> _Gradients:
        received, name, process_set = ctx.call
        result = alltoall(gradients[0], received, f"{name}.gradient", process_set)[0]
        return (result, None, None, None)


def alltoall(
    tensor: torch.Tensor, splits: list[int] | None, name: str, process_set: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Recorded alltoall: the output and the received splits."""
    output, received = _Alltoall.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    return output, received


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: str,
        names: list[str],
        reduction: Reduction,
        process_set: int,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.call = (group, names, reduction, process_set)
        handle = _C.enqueue_reducescatter(
            tensors,
            names,
            group,
            int(reduction.op),
            reduction.prescale,
            reduction.postscale,
            process_set,
        )
        return tuple(_C.wait(handle))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> _Gradients:
        group, names, reduction, process_set = ctx.call
        _refuse("reducescatter", reduction)
        factor = reduction.prescale * reduction.postscale
        if reduction.op is Average:
            factor /= _lifecycle.size()
        gathered = allgather(
            list(gradients), _gradient_group(group), _gradient_names(names), process_set
        )
        return (None, None, None, None, *(tensor * factor for tensor in gathered))


def reducescatter(
    tensors: list[torch.Tensor],
    group: str,
    names: list[str],
    reduction: Reduction,
    process_set: int,
) -> list[torch.Tensor]:
    """Recorded reducescatter of one group."""
    return list(_Reducescatter.apply(group, names, reduction, process_set, *tensors))  # type: ignore[no-untyped-call]
