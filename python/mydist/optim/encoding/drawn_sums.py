"""DrawnSums: adds up values at places that all ranks draw alike; the exchange of randomk."""

from __future__ import annotations

import math

import torch

from ...collectives import allreduce_async
from ...reduce_op import Sum
from .exchange import Arrived, BucketPlan, Stages, key_of
from .raw_bytes import bytes_of_sum

_ANY_RANK = -1  # In keys: all ranks draw the same.


class DrawnSums:
    """See Exchange. The engine adds up the values of a host by itself."""

    is_fixed = True
    adds_up_first = False

    def __init__(self, plan: BucketPlan) -> None:
        self._plan = plan
        codec = plan.codec
        self._seed: int = codec.seed  # type: ignore[attr-defined]
        ratio: float = codec.ratio  # type: ignore[attr-defined]
        self._pieces = [pieces_of(length, ratio) for length in plan.lengths]
        self.raw_bytes = bytes_of_sum(plan.places, plan.lengths)
        drawn = sum(begins.numel() - 1 for begins in self._pieces)
        self._wire_bytes = bytes_of_sum(plan.places, [drawn])

    def run(self, values: list[torch.Tensor], step: int) -> Stages:
        """See Exchange."""
        plan = self._plan
        states = plan.residuals.tensors("sent", plan.names, plan.lengths)
        factors = plan.residuals.factors(plan.names)
        drawn = [
            draw(begins, key_of(self._seed, name, step, _ANY_RANK))
            for begins, name in zip(self._pieces, plan.names, strict=True)
        ]
        picked = [
            value[places] + state[places].mul_(factor)
            for value, places, state, factor in zip(values, drawn, states, factors, strict=True)
        ]
        flat = torch.cat(picked)
        if not all(map(_is_finite, values)):
            flat[0] = math.nan  # The others have to see it, wherever it is.
        total = yield allreduce_async(
            flat, op=Sum, name=f"{plan.name}.drawn", process_set=plan.process_set
        )
        total.mul_(plan.scale)
        sums = total.split([places.numel() for places in drawn])

        def keep() -> None:
            for value, places, state, factor in zip(values, drawn, states, factors, strict=True):
                state.mul_(factor).add_(value) if factor != 1 else state.add_(value)
                state[places] = 0
            plan.residuals.kept(plan.names)

        def write() -> None:
            for value, places, sent in zip(values, drawn, sums, strict=True):
                value.zero_()
                value[places] = sent

        return Arrived(_is_finite(total), True, keep, write, self._wire_bytes)


def pieces_of(length: int, ratio: float) -> torch.Tensor:
    """The begins of ⌈ratio × length⌉ pieces of about equal length, and the end of the last."""
    # 0.07 × 100 is a little more than 7 in floating point, and 7 is meant.
    count = min(length, max(1, math.ceil(ratio * length * (1 - 1e-12))))
    return torch.arange(count + 1, dtype=torch.int64, device="cpu") * length // count


def draw(begins: torch.Tensor, key: int) -> torch.Tensor:
    """One place of each piece. The key alone decides which."""
    generator = torch.Generator().manual_seed(key)
    begin, lengths = begins[:-1], begins.diff()
    shares = torch.rand(begin.numel(), dtype=torch.float64, device="cpu", generator=generator)
    return begin + (shares * lengths).long()


def _is_finite(values: torch.Tensor) -> bool:
    """One pass without a copy: the extremes are NaN if a value is."""
    return all(map(math.isfinite, (float(end) for end in values.aminmax())))
