"""Mean and variance of a batch that is spread over ranks, and normalization by them.

One allgather in forward, one allreduce in backward, both of a few numbers per channel. The numbers
are float64, whatever the batch is made of. Those of a batch on an NVIDIA GPU stay there, and
nothing here waits for it: what the host has to know, the number of values, travels by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from ..collectives import allgather, allreduce
from ..job.process_set import ProcessSet
from ..reduce_op import Sum

Gradients = tuple[torch.Tensor | None, ...]


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """Of every channel, over all ranks' values: tensors of shape (channels,), float64."""

    count: int  # values per channel
    mean: torch.Tensor
    variance: torch.Tensor  # biased: divided by count

    def unbiased_variance(self) -> torch.Tensor:
        """The variance divided by count - 1, which must not be 0."""
        return self.variance * (self.count / (self.count - 1))


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """float32 for what is narrower."""
    return torch.promote_types(dtype, torch.float32)


def _other_dims(batch: torch.Tensor) -> list[int]:
    return [dim for dim in range(batch.dim()) if dim != 1]


def _per_channel(values: torch.Tensor, batch: torch.Tensor) -> torch.Tensor:
    """Shape (channels,) made to broadcast against (rows, channels, …)."""
    return values.reshape(1, -1, *[1] * (batch.dim() - 2))


def _place_of_numbers(batch: torch.Tensor) -> torch.device:
    """Collectives take them where they are if that is an NVIDIA GPU, else from the CPU."""
    return batch.device if batch.device.type == "cuda" else torch.device("cpu")


def _count_on_all_ranks(count: int, name: str, process_set: ProcessSet) -> int:
    """The sum of all ranks' counts, known to the host without asking a GPU."""
    mine = torch.tensor([count], dtype=torch.int64, device="cpu")
    return int(allgather(mine, name=f"{name}.counts", process_set=process_set).sum())


@torch.no_grad()
def gather_statistics(batch: torch.Tensor, process_set: ProcessSet, name: str) -> BatchStatistics:
    """Statistics of all ranks' batches, the same bits on every rank. Blocks until all have called.

    Each rank sends its count, means and sums of squared deviations; they are combined as in Chan,
    Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample Variances",
    1979, which does not cancel as E[x²] - E[x]² does.

    Args:
        batch: (rows, channels, …), floating point; rows may differ from rank to rank and be 0.
    """
    channels = batch.shape[1]
    count = batch.numel() // channels
    place = _place_of_numbers(batch)
    mine = torch.zeros(1 + 2 * channels, dtype=torch.float64, device=place)
    if count > 0:
        wide = batch.to(compute_dtype(batch.dtype))
        variance, mean = torch.var_mean(wide, _other_dims(batch), correction=0)
        own_count = torch.full((1,), count, dtype=torch.float64, device=batch.device)
        mine = torch.cat([own_count, mean.double(), variance.double() * count]).to(place)
    table = allgather(mine.unsqueeze(0), name=f"{name}.statistics", process_set=process_set)
    counts, means, squares = torch.split(table, [1, channels, channels], dim=1)
    total = counts.sum().clamp(min=1.0)  # No rank has any value: all zeros.
    mean = (counts * means).sum(0) / total
    variance = (squares + counts * (means - mean).square()).sum(0) / total
    if place.type == "cpu":
        whole_count = int(counts.sum())
    else:
        whole_count = _count_on_all_ranks(count, name, process_set)
    device = batch.device
    return BatchStatistics(whole_count, mean.to(device), variance.to(device))


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        batch: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        statistics: BatchStatistics,
        eps: float,
        name: str,
        process_set: ProcessSet,
    ) -> torch.Tensor:
        dtype = compute_dtype(batch.dtype)
        mean = statistics.mean.to(dtype)
        scale = (statistics.variance + eps).rsqrt().to(dtype)
        ctx.save_for_backward(batch, weight, mean, scale)
        ctx.call = (statistics.count, name, process_set)
        ctx.bias_dtype = None if bias is None else bias.dtype
        slope = scale if weight is None else scale * weight
        result = (batch - _per_channel(mean, batch)) * _per_channel(slope, batch)
        if bias is not None:
            result += _per_channel(bias, batch)
        return result.to(batch.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        batch, weight, mean, scale = ctx.saved_tensors
        count, name, process_set = ctx.call
        gradient = gradients[0].to(mean.dtype)
        normal = (batch - _per_channel(mean, batch)) * _per_channel(scale, batch)
        dims = _other_dims(batch)
        own = torch.stack([gradient.sum(dims), (gradient * normal).sum(dims)])
        numbers = own.double().to(_place_of_numbers(own))
        # Always, even when only weight and bias want a gradient: the other ranks may wait for it.
        sums = allreduce(numbers, op=Sum, name=f"{name}.gradient", process_set=process_set)
        shift, stretch = (sums / max(count, 1)).to(own.device, own.dtype).unbind(0)
        slope = scale if weight is None else scale * weight
        centered = gradient - _per_channel(shift, batch) - normal * _per_channel(stretch, batch)
        of_batch = (centered * _per_channel(slope, batch)).to(batch.dtype)
        # Copies: to autograd, views of one tensor all change when backward adds to one of them.
        own_bias, own_weight = own.unbind(0)
        of_weight = None if weight is None else own_weight.to(weight.dtype, copy=True)
        of_bias = None if ctx.bias_dtype is None else own_bias.to(ctx.bias_dtype, copy=True)
        return (of_batch, of_weight, of_bias, None, None, None, None)


def normalize(
    batch: torch.Tensor,
    affine: tuple[torch.Tensor | None, torch.Tensor | None],
    statistics: BatchStatistics,
    eps: float,
    call: tuple[str, ProcessSet],
) -> torch.Tensor:
    """`(batch - mean) / sqrt(variance + eps) * weight + bias`, of the batch's shape and dtype.

    Recorded: the statistics depend on all ranks' batches, so backward sums two numbers per channel
    over the ranks (Ioffe and Szegedy 2015, arXiv:1502.03167, section 3). The gradients of weight
    and bias are those of this rank's loss, as every parameter's are.

    Args:
        affine: weight and bias, each of shape (channels,) or None.
        call: the name and the process set that gave the statistics.
    """
    name, process_set = call
    result: torch.Tensor = _Normalize.apply(batch, *affine, statistics, eps, name, process_set)  # type: ignore[no-untyped-call]
    return result
