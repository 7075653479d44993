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

The derivative is that of the sum of all ranks' losses. Backward communicates, so it needs every
rank of the set: the input must require grad on all of them or on none, all must run backward
through the call, and through several calls in one order. A rank that does not leaves the others
waiting for a tensor whose name ends in ".gradient"; let its loss contain `0 * output.sum()`, and
pass a constant input as `x.detach().requires_grad_()`. Second derivatives work the same way.

Not recorded: in-place and asynchronous forms, send and recv, and reduce and gather, which leave
most ranks without an output that backward could start from.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .recorded_moves import allgather, alltoall
from .recorded_reductions import allreduce, broadcast, reducescatter
from .recorded_scatter import scatter

__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "needs_gradient",
    "reducescatter",
    "scatter",
]


def needs_gradient(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether the outputs of a call on these tensors have to be recorded."""
    if not torch.is_grad_enabled():
        return False
    for tensor in tensors:  # noqa: SIM110  (any() of a generator takes longer)
        if tensor.requires_grad:
            return True
    return False
