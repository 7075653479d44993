"""Allreduce of sparse tensors: every rank gets all ranks' indices and values and adds them up."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .. import _C
from ..job.names import resolve_name, submit
from ..job.process_set import ProcessSet, global_process_set
from ..reduce_op import Average, ReduceOp, Sum
from .arguments import check_process_set, check_tensor, refusal_noted, resolve_reduction
from .handles import remember

__all__ = ["sparse_allreduce_async"]

_CALL = "sparse_allreduce_async"
_HALVES = (torch.float16, torch.bfloat16)


def _check_sparse(tensor: object) -> torch.Tensor:
    checked = check_tensor(_CALL, tensor)
    if checked.layout != torch.sparse_coo:
        kind = "dense" if checked.layout == torch.strided else str(checked.layout)
        instead = (
            "use allreduce_async(), or convert it with to_sparse()"
            if checked.layout == torch.strided
            else "convert it with to_sparse()"
        )
        raise ValueError(f"{_CALL}: got a {kind} tensor, expected a sparse COO tensor; {instead}")
    if checked.sparse_dim() == 0:
        raise ValueError(
            f"{_CALL}: got a tensor without sparse dimensions (shape {list(checked.shape)}), "
            "expected at least one; use allreduce_async() on tensor.to_dense()"
        )
    if checked.dtype == torch.bool:
        raise TypeError(
            f"{_CALL}: got dtype torch.bool, which has no sum; convert the tensor with "
            "to(torch.uint8)"
        )
    return checked.detach()


def _check_op(op: ReduceOp | None) -> ReduceOp:
    resolved = resolve_reduction(_CALL, None, op, 1.0, 1.0).op
    if resolved not in (Average, Sum):
        raise ValueError(
            f"{_CALL}: op is {resolved}, expected Average or Sum: only these two can treat a "
            "missing element as 0. Use allreduce_async() on tensor.to_dense()"
        )
    return resolved


def _averages_integers(op: ReduceOp, dtype: torch.dtype) -> bool:
    return op is Average and not (dtype.is_floating_point or dtype.is_complex)


def _entries(tensor: torch.Tensor, op: ReduceOp) -> tuple[torch.Tensor, torch.Tensor]:
    """Indices (entries, sparse dims) and values (entries, dense dims …), one row per entry."""
    # Adding up duplicates here makes the message shorter, but would round halves twice, and the
    # integers of an average would wrap.
    if tensor.dtype not in _HALVES and not _averages_integers(op, tensor.dtype):
        tensor = tensor.coalesce()
    return tensor._indices().t().contiguous(), tensor._values()


def _add_up(
    op: ReduceOp, shape: torch.Size, dtype: torch.dtype, ranks: int
) -> Callable[[list[torch.Tensor]], torch.Tensor]:
    def finish(outputs: list[torch.Tensor]) -> torch.Tensor:
        indices, values, _ = outputs
        averages_integers = _averages_integers(op, dtype)
        wide = values.float() if dtype in _HALVES else values
        if averages_integers:
            wide = _C.carry_integers(values)
        total = torch.sparse_coo_tensor(
            indices.t(),
            wide,
            shape + wide.shape[values.dim() :],
            device=wide.device,
            check_invariants=False,
            is_coalesced=False,
        ).coalesce()
        sums = total.values()
        if averages_integers:
            sums = _C.average_integers(sums, dtype, ranks)
        elif op is Average:
            sums = sums / ranks
        return torch.sparse_coo_tensor(
            total.indices(),
            sums.to(dtype),
            shape,
            device=sums.device,
            check_invariants=False,
            is_coalesced=True,
        )

    return finish


def sparse_allreduce_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: ReduceOp | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Enqueues the reduction of all ranks' sparse tensors; returns a handle.

    synchronize(handle) gives a coalesced sparse COO tensor of the same shape and dtype, the same on
    every rank: indices that occur several times, on one rank or on several, are added up once; an
    index stays even if its sum is 0. float16 and bfloat16 are added in float32 and rounded once.
    What travels grows with the number of ranks: it pays while their entries together are fewer than
    the dense tensor's elements. Never waits for other ranks. The result carries no gradient.

    Args:
        tensor: sparse COO, coalesced or not, of any shape with at least one sparse dimension, and
            any dense ones; equal shape, sparse dimensions and dtype on all ranks, any number of
            entries (0 is fine). It must not be changed until synchronize() has returned.
        name: equal on all ranks; None numbers the calls in order.
        op: Average (default; divides by the number of ranks in the set, entries or not) or Sum.
        process_set: the ranks that take part; this one is among them.

    Raises:
        ValueError: the tensor is not sparse COO, `op` is neither Average nor Sum, or the name is in
            flight already.
        TypeError: wrong type or unsupported dtype.
        MismatchError: from synchronize(), on every rank: shapes or dtypes differ. The text gives
            the shape behind a leading 0 as that of `NAME.shape`.
        MydistError: the job failed; see mydist.errors.
    """
    with refusal_noted("sparse_allreduce", name, process_set):
        checked = _check_sparse(tensor)
        reduce_op = _check_op(op)
        set_id = check_process_set(_CALL, process_set)
        indices, values = _entries(checked, reduce_op)  # Which torch may refuse.
    full_name = resolve_name("sparse_allreduce", name, set_id)
    # No rows, so no bytes: it is there for the engine to compare the shapes of the ranks' tensors.
    shape = torch.empty(0, *checked.shape, dtype=torch.uint8, device="cpu")
    names = [f"{full_name}.{part}" for part in ("indices", "values", "shape")]
    arguments = ([indices, values, shape], names, full_name, set_id)
    handle = submit(full_name, _C.enqueue_allgather, *arguments)
    finish = _add_up(reduce_op, checked.shape, checked.dtype, process_set.size())
    return remember(handle, finish)
