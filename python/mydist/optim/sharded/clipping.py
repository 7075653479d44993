"""What ranks must know of each other's slices of the gradients: their norm, and an overflow."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ...collectives import allreduce
from ...job.process_set import ProcessSet
from ...reduce_op import Max, Sum


def joint_norm(
    views: Sequence[torch.Tensor], norm_type: float, process_set: ProcessSet
) -> torch.Tensor:
    """The norm of the gradients of all ranks' views, shape (); the same bits on all ranks."""
    if not norm_type > 0:
        raise ValueError(f"clip_grad_norm_: norm_type is {norm_type!r}, expected a number above 0")
    gradients = [view.grad for view in views if view.grad is not None]
    norms = [torch.linalg.vector_norm(g, norm_type, dtype=torch.float64) for g in gradients]
    none = torch.zeros((), dtype=torch.float64, device="cpu")
    local = torch.stack([none, *(norm.cpu() for norm in norms)])
    if math.isinf(norm_type):
        own, op = local.max(), Max
    else:
        own, op = local.pow(norm_type).sum(), Sum
    total = allreduce(own, op=op, name="sharded.norm", process_set=process_set)
    norm = total if math.isinf(norm_type) else total.pow(1.0 / norm_type)
    return norm.to(views[0].device if views else "cpu", torch.float32)


def expect_finite(norm: torch.Tensor, norm_type: float, wanted: bool) -> None:
    """Raises RuntimeError, as torch does."""
    if wanted and not bool(norm.isfinite()):
        raise RuntimeError(
            f"The total norm of order {norm_type} for gradients is non-finite, so it cannot be "
            "clipped. To disable this error and scale the gradients by the non-finite norm anyway, "
            "set `error_if_nonfinite=False`"
        )


def overflows(views: Sequence[torch.Tensor]) -> bool:
    """Whether a gradient has an infinite element or a NaN."""
    return not all(bool(v.grad.isfinite().all()) for v in views if v.grad is not None)


def same_overflow_everywhere(
    views: Sequence[torch.Tensor], process_set: ProcessSet
) -> list[torch.Tensor]:
    """The views, and one more whose gradient is infinite if any rank overflows, else 0.

    GradScaler skips a step if a gradient that it sees is not finite, and ranks see their slices. It
    wants to see one at least, and a rank may own nothing.
    """
    own = torch.tensor([int(overflows(views))], dtype=torch.int32, device="cpu")
    anywhere = allreduce(own, op=Max, name="sharded.overflow", process_set=process_set)
    device = views[0].device if views else torch.device("cpu")
    witness = torch.zeros(1, dtype=torch.float32, device=device)
    witness.grad = torch.full_like(witness, math.inf if int(anywhere) else 0.0)
    return [*views, witness]
