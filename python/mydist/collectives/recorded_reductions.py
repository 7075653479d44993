"""Autograd through the collectives that reduce: allreduce and reducescatter.

Each backward is made of recorded collectives, so that it can be differentiated again.
"""

from __future__ import annotations

from typing import Any

import torch

from .. import _C
from ..job import topology
from ..job.process_set import ProcessSet
from ..reduce_op import Average, Max, Min, Product, Sum
from .arguments import Reduction, check_process_set
from .recorded_moves import Gradients, allgather, alltoall, gradient_group, gradient_names

_PLAIN_SUM = Reduction(Sum, 1.0, 1.0)


def _is_linear(call: str, reduction: Reduction) -> bool:
    """Whether it is a scaled sum. Raises NotImplementedError when it has no gradient at all."""
    if reduction.op in (Average, Sum):
        return True
    if reduction.op in (Min, Max, Product):
        return False
    raise NotImplementedError(
        f"{call} with op {reduction.op} has no gradient: its coefficients depend on dot products "
        "of whole vectors, and it is meant for gradients, not for activations. Use Sum or Average, "
        "or detach() the input"
    )


class _Allreduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: str,
        names: list[str],
        reduction: Reduction,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.call = (group, names, reduction, process_set)
        ctx.save_for_backward(*(() if reduction.op in (Average, Sum) else tensors))
        outputs = _C.allreduce(
            tensors,
            None,
            names,
            group,
            int(reduction.op),
            reduction.prescale,
            reduction.postscale,
            check_process_set("allreduce", process_set),
        )
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        group, names, reduction, process_set = ctx.call
        group, names = gradient_group(group), gradient_names(names)
        if _is_linear("allreduce", reduction):
            results = allreduce(list(gradients), group, names, reduction, process_set)
            return (None, None, None, None, *results)
        # From here on each rank works on its share of the elements, as reducescatter's backward.
        flat = [gradient.reshape(-1) for gradient in gradients]
        totals = reducescatter(flat, group, names, _PLAIN_SUM, process_set)
        results = [
            _pull_back(x.reshape(-1), total, reduction, name, process_set).reshape(x.shape)
            for x, total, name in zip(ctx.saved_tensors, totals, names, strict=True)
        ]
        return (None, None, None, None, *results)


def allreduce(
    tensors: list[torch.Tensor],
    group: str,
    names: list[str],
    reduction: Reduction,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    """Recorded allreduce of one group."""
    return list(_Allreduce.apply(group, names, reduction, process_set, *tensors))  # type: ignore[no-untyped-call]


class _Reducescatter(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        group: str,
        names: list[str],
        reduction: Reduction,
        process_set: ProcessSet,
        *tensors: torch.Tensor,
    ) -> tuple[torch.Tensor, ...]:
        ctx.call = (group, names, reduction, process_set)
        ctx.save_for_backward(*(() if reduction.op in (Average, Sum) else tensors))
        outputs = _C.reducescatter(
            tensors,
            names,
            group,
            int(reduction.op),
            reduction.prescale,
            reduction.postscale,
            check_process_set("reducescatter", process_set),
        )
        return tuple(outputs)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        group, names, reduction, process_set = ctx.call
        group, names = gradient_group(group), gradient_names(names)
        if not _is_linear("reducescatter", reduction):
            pulled = [
                _pull_back(x, gradient, reduction, name, process_set)
                for x, gradient, name in zip(ctx.saved_tensors, gradients, names, strict=True)
            ]
            return (None, None, None, None, *pulled)
        factor = reduction.prescale * reduction.postscale
        if reduction.op is Average:
            factor /= process_set.size()
        gathered = allgather(list(gradients), group, names, process_set)
        return (None, None, None, None, *(tensor * factor for tensor in gathered))


def reducescatter(
    tensors: list[torch.Tensor],
    group: str,
    names: list[str],
    reduction: Reduction,
    process_set: ProcessSet,
) -> list[torch.Tensor]:
    """Recorded reducescatter of one group."""
    return list(_Reducescatter.apply(group, names, reduction, process_set, *tensors))  # type: ignore[no-untyped-call]


def _pull_back(
    x: torch.Tensor,
    gradient: torch.Tensor,
    reduction: Reduction,
    name: str,
    process_set: ProcessSet,
) -> torch.Tensor:
    """The gradient of input `x` of a Min, Max or Product whose rows are spread over the ranks.

    Args:
        x: this rank's whole input, shape (d, …).
        gradient: of this rank's rows of the result, shape (m, …) with d rows over all ranks.

    Every rank collects all ranks' inputs for its rows, computes the gradients of all of them as one
    process would, and hands them back: no rank ever holds more than one tensor's worth.
    """
    size, rows = process_set.size(), x.shape[0]
    splits = [rows // size + (rank < rows % size) for rank in range(size)]
    mine = gradient.shape[0]
    collected = alltoall(x, splits, f"{name}.inputs", process_set)[0]
    # float16 and bfloat16 are computed in float32, as the engine does.
    wide = torch.promote_types(x.dtype, torch.float32)
    inputs = collected.reshape(size, *gradient.shape).to(wide)
    shares = _input_gradients(inputs, gradient.to(wide), reduction).to(x.dtype)
    shares = shares.reshape(size * mine, *gradient.shape[1:])
    return alltoall(shares, [mine] * size, f"{name}.shares", process_set)[0]


def _input_gradients(
    inputs: torch.Tensor, gradient: torch.Tensor, reduction: Reduction
) -> torch.Tensor:
    """Gradients of `inputs` (ranks, …) given that of their reduction over the first dimension."""
    scaled = inputs * reduction.prescale
    factor = reduction.prescale * reduction.postscale
    if reduction.op is Product:
        return gradient * factor * _products_of_others(scaled).conj()
    reached = scaled.amax(0) if reduction.op is Max else scaled.amin(0)
    chosen = (scaled == reached).to(scaled.dtype)
    return chosen * (gradient * factor / chosen.sum(0))


def _products_of_others(factors: torch.Tensor) -> torch.Tensor:
    """For each i the product of all factors[j], j ≠ i; without a division, so zeros are exact."""
    one = torch.ones_like(factors[:1])
    before = torch.cat([one, factors[:-1]]).cumprod(0)
    after = torch.cat([one, factors.flip(0)[:-1]]).cumprod(0).flip(0)
    return before * after


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        tensor: torch.Tensor,
        root_rank: int,
        name: str,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        ctx.call = (root_rank == topology.rank(), name, process_set)
        set_id = check_process_set("broadcast", process_set)
        return _C.broadcast(tensor, None, root_rank, name, set_id)[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        is_root, name, process_set = ctx.call
        names = gradient_names([name])
        total = allreduce(list(gradients), "", names, _PLAIN_SUM, process_set)[0]
        # Not a plain zero: the second derivative has to pass through the allreduce on all ranks.
        chosen = torch.full_like(total, is_root, dtype=torch.bool)
        mine = torch.where(chosen, total, torch.zeros_like(total))
        return (mine, None, None, None)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str, process_set: ProcessSet
) -> torch.Tensor:
    """Recorded broadcast."""
    result: torch.Tensor = _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-untyped-call]
    return result
