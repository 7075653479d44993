"""LowRankSums: adds up products of narrow matrices; the exchange of powersgd."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ... import _C
from ...collectives import allreduce_async
from ...reduce_op import Sum
from .exchange import Arrived, BucketPlan, Stages, key_of
from .raw_bytes import bytes_of_sum

_ANY_RANK = -1  # In keys: all ranks draw the same.


@dataclass(frozen=True)
class _Matrix:
    name: str
    rows: int
    columns: int


class LowRankSums:
    """See Exchange. The engine adds up the factors of a host by itself.

    All matrices of a bucket travel in two allreduces. Q is kept beside the residuals: it is the
    same on all ranks, as it comes from the sum.
    """

    is_fixed = True
    adds_up_first = False

    def __init__(self, plan: BucketPlan) -> None:
        self._plan = plan
        codec = plan.codec
        self._rank: int = codec.rank  # type: ignore[attr-defined]
        self._start: int = codec.start  # type: ignore[attr-defined]
        self._seed: int = codec.seed  # type: ignore[attr-defined]
        self._matrices = [
            _Matrix(name, shape[0], math.prod(shape[1:]))
            for name, shape in zip(plan.names, plan.shapes, strict=True)
        ]
        self._p_sizes = [self._rank * matrix.rows for matrix in self._matrices]
        self._q_sizes = [self._rank * matrix.columns for matrix in self._matrices]
        self.raw_bytes = bytes_of_sum(plan.places, plan.lengths)
        self._wire_bytes = sum(
            bytes_of_sum(plan.places, [sum(sizes)]) for sizes in (self._p_sizes, self._q_sizes)
        )

    def run(self, values: list[torch.Tensor], step: int) -> Stages:
        """See Exchange."""
        if step < self._start:
            return (yield from self._run_raw(values))
        plan = self._plan
        residuals = plan.residuals.tensors("sent", plan.names, plan.lengths)
        kept = plan.residuals.tensors("q", plan.names, self._q_sizes)
        factors = plan.residuals.factors(plan.names)
        parts = list(zip(self._matrices, values, residuals, factors, strict=True))

        flat_p = torch.empty(sum(self._p_sizes), dtype=torch.float32, device="cpu")
        for (matrix, value, residual, factor), q, p in zip(
            parts, kept, torch.split_with_sizes(flat_p, self._p_sizes), strict=True
        ):
            start = self._begin(matrix, q)
            _C.low_rank_times(value, residual, factor, matrix.rows, start, p)
        flat_p = yield self._sum(flat_p, "p")
        ps = torch.split_with_sizes(flat_p, self._p_sizes)
        # What is not finite on any rank is not in the sums of its row.
        is_finite = bool(flat_p.isfinite().all())

        flat_q = torch.empty(sum(self._q_sizes), dtype=torch.float32, device="cpu")
        own_qs = torch.split_with_sizes(flat_q, self._q_sizes)
        for (matrix, value, residual, factor), p, q in zip(parts, ps, own_qs, strict=True):
            _C.orthogonalize(p, matrix.rows)
            _C.low_rank_transposed_times(value, residual, factor, matrix.rows, p, q)
        sum_q = yield self._sum(flat_q, "q")
        sum_qs = torch.split_with_sizes(sum_q, self._q_sizes)
        is_finite = is_finite and bool(sum_q.isfinite().all())

        def keep() -> None:
            for (matrix, value, residual, factor), p, own in zip(parts, ps, own_qs, strict=True):
                _C.low_rank_keep(value, residual, factor, matrix.rows, p, own)
            for matrix, q, new in zip(self._matrices, kept, sum_qs, strict=True):
                # Of length 1: its magnitude would grow with that of the gradients.
                _C.orthogonalize(q.copy_(new), matrix.columns)
            plan.residuals.kept(plan.names)

        def write() -> None:
            for matrix, value, p, q in zip(self._matrices, values, ps, sum_qs, strict=True):
                if is_finite:
                    _C.low_rank_product(p, q, matrix.rows, plan.scale, value)
                else:
                    value.fill_(math.nan)

        return Arrived(is_finite, True, keep, write, self._wire_bytes)

    def _run_raw(self, values: list[torch.Tensor]) -> Stages:
        plan = self._plan
        total = yield self._sum(torch.cat(values), "raw")

        def keep() -> None: ...

        def write() -> None:
            for value, part in zip(values, total.split(plan.lengths), strict=True):
                torch.mul(part, plan.scale, out=value)

        return Arrived(bool(total.isfinite().all()), False, keep, write, self.raw_bytes)

    def _sum(self, flat: torch.Tensor, part: str) -> int:
        plan = self._plan
        return allreduce_async(
            flat, op=Sum, name=f"{plan.name}.{part}", process_set=plan.process_set
        )

    def _begin(self, matrix: _Matrix, kept: torch.Tensor) -> torch.Tensor:
        """The Q of the last step. Columns that are 0, as at first, are drawn."""
        columns = kept.view(self._rank, matrix.columns)
        is_used = columns.count_nonzero(dim=1) > 0
        if bool(is_used.all()):
            return kept
        key = key_of(self._seed, matrix.name, 0, _ANY_RANK, "q")
        generator = torch.Generator().manual_seed(key)
        drawn = torch.randn(columns.shape, dtype=torch.float32, device="cpu", generator=generator)
        return torch.where(is_used[:, None], columns, drawn).view(-1)
