"""Autograd through the collectives: each backward is the adjoint of its forward.

A collective is a function from all ranks' inputs to all ranks' outputs. Its adjoint (the transposed
Jacobian) takes the gradients of all outputs to those of all inputs and is made of collectives
again. With c = prescale * postscale, over n for Average:

    allreduce      y_r = c * sum over i of x_i           dx_i = c * sum over r of dy_r
    allgather      y_r = x_0, x_1, …                     dx_i = sum over r of rows i of dy_r
    broadcast      y_r = x_root                          dx_root = sum over r of dy_r, else 0
    alltoall       rows of x_i for r → y_r               the same with the received splits
    scatter        x_root = y_0, y_1, …                  dx_root = dy_0, dy_1, …, else 0
    reducescatter  y_r = c * rows r of sum over i of x_i  dx_i = c * (dy_0, dy_1, …)

Min, Max and Product are differentiated as torch differentiates them over a stacked dimension: Min
and Max give the gradient to the ranks that hold the extreme, in equal parts when several do;
Product gives each rank the product of the others'. Adasum has no gradient.

The derivative is that of the sum of all ranks' losses. Each backward is made of recorded calls, so
second derivatives work the same way. docs/autograd.md says what the ranks have to do alike, and
what is not recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

import torch

from ..job import topology
from ..reduce_op import Average, Max, Min, Product, Sum
from .arguments import Reduction

if TYPE_CHECKING:
    from .call import Call

Tensors = list[torch.Tensor]

_PLAIN_SUM = Reduction(Sum, 1.0, 1.0)


def needs_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the outputs of a call on these tensors have to be recorded."""
    if not torch.is_grad_enabled():
        return False
    for tensor in tensors:  # noqa: SIM110  (any() of a generator takes longer)
        if tensor.requires_grad:
            return True
    return False


def record(call: Call, tensors: Tensors) -> Tensors:
    """Makes the call on these tensors, recorded by autograd."""
    return list(_Recorded.apply(call, *tensors))  # type: ignore[no-untyped-call]


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        ctx.call = copy(call)
        ctx.call.tensors = []  # They need not stay in memory until backward.
        ctx.shapes = [tensor.shape for tensor in tensors]
        if call.reduction.op not in (Average, Sum):
            ctx.save_for_backward(*tensors)
        outputs = call.plain(tensors)
        if call.collective.name == "alltoall":
            ctx.received = outputs[1].tolist()
            ctx.mark_non_differentiable(outputs[1])
        # A gather has no output but on the root.
        return tuple(outputs) or (tensors[0].new_zeros(call.shape),)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return (None, *_ADJOINTS[ctx.call.collective.name](ctx, list(gradients)))


def _is_linear(call: Call) -> bool:
    """Whether it is a scaled sum. Raises NotImplementedError when it has no gradient at all."""
    op = call.reduction.op
    if op in (Average, Sum, Min, Max, Product):
        return op in (Average, Sum)
    raise NotImplementedError(
        f"{call.collective.name} with op {op} has no gradient: its coefficients depend on dot "
        "products of whole vectors, and it is meant for gradients, not for activations. Use Sum or "
        "Average, or detach() the input"
    )


def _allreduce(ctx: Any, gradients: Tensors) -> Tensors:
    call: Call = ctx.call
    if _is_linear(call):
        return record(call.again("allreduce", "gradient"), gradients)
    # From here on each rank works on its share of the elements, as reducescatter's backward.
    flat = [gradient.reshape(-1) for gradient in gradients]
    totals = record(call.again("reducescatter", "gradient", reduction=_PLAIN_SUM), flat)
    return [
        _pull_back(call, i, x.reshape(-1), total).reshape(x.shape)
        for i, (x, total) in enumerate(zip(ctx.saved_tensors, totals, strict=True))
    ]


def _reducescatter(ctx: Any, gradients: Tensors) -> Tensors:
    call: Call = ctx.call
    if not _is_linear(call):
        pairs = zip(ctx.saved_tensors, gradients, strict=True)
        return [_pull_back(call, i, x, gradient) for i, (x, gradient) in enumerate(pairs)]
    factor = call.reduction.prescale * call.reduction.postscale
    if call.reduction.op is Average:
        factor /= call.process_set.size()
    gathered = record(call.again("allgather", "gradient"), gradients)
    return [tensor * factor for tensor in gathered]


def _allgather(ctx: Any, gradients: Tensors) -> Tensors:
    call: Call = ctx.call
    rows = [[shape[0] if shape else 1 for shape in ctx.shapes]]
    mine = torch.tensor(rows, dtype=torch.int64, device="cpu")
    # Column i: how many rows each rank contributed to tensor i.
    columns = call.again("allgather", "rows", 0).plain([mine])[0].t().tolist()
    results = []
    for i, (gradient, splits, shape) in enumerate(zip(gradients, columns, ctx.shapes, strict=True)):
        # Every rank gets its rows of all ranks' gradients, and adds them up.
        arrived = record(call.again("alltoall", "gradient", i, splits=splits), [gradient])[0]
        results.append(arrived.reshape(len(splits), *(shape or (1,))).sum(0).reshape(shape))
    return results


def _broadcast(ctx: Any, gradients: Tensors) -> Tensors:
    call: Call = ctx.call
    total = record(call.again("allreduce", "gradient", reduction=_PLAIN_SUM), gradients)[0]
    # Not a plain zero: the second derivative has to pass through the allreduce on all ranks.
    chosen = torch.full_like(total, call.root == topology.rank(), dtype=torch.bool)
    return [torch.where(chosen, total, torch.zeros_like(total))]


def _alltoall(ctx: Any, gradients: Tensors) -> Tensors:
    return record(ctx.call.again("alltoall", "gradient", splits=ctx.received), gradients[:1])[:1]


def _scatter(ctx: Any, gradients: Tensors) -> Tensors:
    """All ranks' rows on the root and zeros elsewhere."""
    return record(ctx.call.again("gather", "gradient", shape=ctx.shapes[0]), gradients)


def _gather(ctx: Any, gradients: Tensors) -> Tensors:
    return record(ctx.call.again("scatter", "gradient"), gradients)


_ADJOINTS: dict[str, Callable[[Any, Tensors], Tensors]] = {
    "allreduce": _allreduce,
    "reducescatter": _reducescatter,
    "allgather": _allgather,
    "broadcast": _broadcast,
    "alltoall": _alltoall,
    "scatter": _scatter,
    "gather": _gather,
}


def _pull_back(call: Call, index: int, x: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient of input `x` of a Min, Max or Product whose rows are spread over the ranks.

    Args:
        index: which tensor of the call it is.
        x: this rank's whole input, shape (d, …).
        gradient: of this rank's rows of the result, shape (m, …) with d rows over all ranks.

    Every rank collects all ranks' inputs for its rows, computes the gradients of all of them as one
    process would, and hands them back: no rank ever holds more than one tensor's worth.
    """

    def exchange(what: str, splits: list[int], tensor: torch.Tensor) -> torch.Tensor:
        return record(call.again("alltoall", f"gradient.{what}", index, splits=splits), [tensor])[0]

    size, rows = call.process_set.size(), x.shape[0]
    collected = exchange("inputs", [rows // size + (r < rows % size) for r in range(size)], x)
    mine = gradient.shape[0]
    # float16 and bfloat16 are computed in float32, as the engine does.
    wide = torch.promote_types(x.dtype, torch.float32)
    inputs = collected.reshape(size, *gradient.shape).to(wide)
    shares = _input_gradients(inputs, gradient.to(wide), call.reduction).to(x.dtype)
    return exchange("shares", [mine] * size, shares.reshape(size * mine, *gradient.shape[1:]))


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
