"""Autograd through the collectives that move rows: alltoall and allgather.

Each backward is made of recorded collectives, so that it can be differentiated again.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _C
from ..job.process_set import ProcessSet
from .arguments import check_process_set

Gradients = tuple[torch.Tensor | None, ...]


def gradient_names(names: list[str]) -> list[str]:
    """What the gradients of these tensors are called; equal on all ranks as the names are."""
    return [f"{name}.gradient" for name in names]


def gradient_group(group: str) -> str:
    """The same for a group, which has no name when there is none."""
    return f"{group}.gradient" if group else ""


class _Alltoall(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: list[int] | None,
        name: str,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        set_id = check_process_set("alltoall", process_set)
        output, received = _C.alltoall(tensor, splits, name, set_id)
        ctx.call = (received.tolist(), name, process_set)
        ctx.mark_non_differentiable(received)
        return output, received

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        received, name, process_set = ctx.call
        result = alltoall(gradients[0], received, f"{name}.gradient", process_set)[0]
        return (result, None, None, None)


def alltoall(
    tensor: torch.Tensor, splits: list[int] | None, name: str, process_set: ProcessSet
) -> tuple[torch.Tensor, torch.Tensor]:
    """Recorded alltoall: the output and the received splits."""
    output, received = _Alltoall.apply(tensor, splits, name, process_set)  # type: ignore[no-untyped-call]
    return output, received


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, group: str, names: list[str], process_set: ProcessSet, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        set_id = check_process_set("allgather", process_set)
        ctx.call = (names, process_set)
        ctx.shapes = [tensor.shape for tensor in tensors]
        return tuple(_C.allgather(tensors, names, group, set_id))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        names, process_set = ctx.call
        rows = [shape[0] if shape else 1 for shape in ctx.shapes]
        # Column i: how many rows each rank contributed to tensor i.
        splits = _gather_rows(rows, f"{names[0]}.rows", process_set).t().tolist()
        results = [
            _sum_shares(gradient, splits[i], ctx.shapes[i], f"{names[i]}.gradient", process_set)
            for i, gradient in enumerate(gradients)
        ]
        return (None, None, None, *results)


def _gather_rows(rows: list[int], name: str, process_set: ProcessSet) -> torch.Tensor:
    mine = torch.tensor([rows], dtype=torch.int64, device="cpu")
    set_id = check_process_set("allgather", process_set)
    return _C.allgather([mine], [name], "", set_id)[0]


def _sum_shares(
    gradient: torch.Tensor,
    splits: list[int],
    shape: torch.Size,
    name: str,
    process_set: ProcessSet,
) -> torch.Tensor:
    """Gives every rank its rows of `gradient` and sums what arrives for this rank's own."""
    arrived = alltoall(gradient, splits, name, process_set)[0]
    return arrived.reshape(len(splits), *(shape or (1,))).sum(0).reshape(shape)


def allgather(
    tensors: list[torch.Tensor], group: str, names: list[str], process_set: ProcessSet
) -> list[torch.Tensor]:
    """Recorded allgather of one group."""
    return list(_Allgather.apply(group, names, process_set, *tensors))  # type: ignore[no-untyped-call]
