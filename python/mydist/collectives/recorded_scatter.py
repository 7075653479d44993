"""Autograd through scatter, whose adjoint is a gather to the root.

Each backward is made of recorded collectives, so that it can be differentiated again.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _C
from ..job.process_set import ProcessSet
from .arguments import check_process_set
from .recorded_moves import Gradients


class _Scatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        splits: list[int] | None,
        root_rank: int,
        name: str,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        set_id = check_process_set("scatter", process_set)
        ctx.call = (splits, root_rank, name, process_set)
        ctx.shape = tensor.shape
        return _C.scatter(tensor, splits, root_rank, name, set_id)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        splits, root_rank, name, process_set = ctx.call
        call = (splits, root_rank, f"{name}.gradient", process_set)
        result: torch.Tensor = _GatherRows.apply(gradients[0], ctx.shape, *call)  # type: ignore[no-untyped-call]
        return (result, None, None, None, None)


class _GatherRows(torch.autograd.Function):
    """All ranks' rows on the root and zeros elsewhere; a tensor of `shape` on every rank."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        shape: torch.Size,
        splits: list[int] | None,
        root_rank: int,
        name: str,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        set_id = check_process_set("gather", process_set)
        ctx.call = (splits, root_rank, f"{name}.gradient", process_set)
        outputs = _C.gather(rows, root_rank, name, set_id)
        return outputs[0] if outputs else rows.new_zeros(shape)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        return (scatter(gradients[0], *ctx.call), None, None, None, None, None)


def scatter(
    tensor: torch.Tensor,
    splits: list[int] | None,
    root_rank: int,
    name: str,
    process_set: ProcessSet,
) -> torch.Tensor:
    """Recorded scatter."""
    result: torch.Tensor = _Scatter.apply(tensor, splits, root_rank, name, process_set)  # type: ignore[no-untyped-call]
    return result
