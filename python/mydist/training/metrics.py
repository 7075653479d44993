"""Metrics: weighted averages over all ranks, in one allreduce."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from ..collectives import allreduce
from ..collectives.arguments import check_process_set
from ..collectives.objects import allgather_object
from ..job.names import resolve_name
from ..job.process_set import ProcessSet, global_process_set
from ..reduce_op import Sum

__all__ = ["Metrics"]

# A number, or a tensor of shape () and dtype float64 that is still on its way on another device.
_Sum = float | torch.Tensor


@dataclass
class _Total:
    """What one rank has of one metric."""

    weighted: _Sum = 0.0
    weight: _Sum = 0.0


class Metrics:
    """Collects numbers on every rank and averages them over all of it.

        metrics.update(loss=loss, accuracy=accuracy, weight=len(batch))
        averages = metrics.compute()  # {"accuracy": 0.91, "loss": 0.27}

    The average of a metric is Σ weight·value / Σ weight over all updates of all ranks since
    reset(), summed in float64. Ranks may have updated different metrics, or none.

    Args:
        name: what the allreduce is called in messages and the timeline; equal on all ranks.
        process_set: the ranks whose updates count; compute() is called on all of them.

    Raises:
        TypeError: `name` is no str, or `process_set` no ProcessSet.
    """

    def __init__(self, name: str = "metrics", process_set: ProcessSet = global_process_set) -> None:
        check_process_set("Metrics", process_set)
        self._name = resolve_name("Metrics", name)
        self._process_set = process_set
        self._totals: dict[str, _Total] = {}
        # The names that all ranks have agreed on: the order in which sums travel.
        self._agreed: list[str] = []

    def update(self, *, weight: float | torch.Tensor = 1.0, **values: float | torch.Tensor) -> None:
        """Adds one value of each metric. Local; does not wait for a GPU to compute the value.

        Args:
            weight: how much the values count, from 0 on, e.g. the samples they are the mean of.
                With weight 0 the values are ignored, even if they are NaN.
            **values: numbers or tensors of one element.

        Raises:
            TypeError: a value or the weight is neither, or complex.
            ValueError: a tensor has more elements than one, or the weight is negative or infinite.
        """
        factor = _as_float64("weight", weight)
        if isinstance(factor, float):  # Looking at one on a device would wait for the device.
            _check_weight(factor)
        checked = {name: _as_float64(name, value) for name, value in values.items()}
        for name, value in checked.items():
            total = self._totals.setdefault(name, _Total())
            total.weighted = total.weighted + _product(value, factor)
            total.weight = total.weight + factor

    def compute(self) -> dict[str, float]:
        """The averages over all ranks, by name in alphabetical order; equal on all. Blocking.

        One allreduce of float64, of shape (1 + 3 × number of metrics,). When a rank has a metric
        that compute() has not seen before, as all have the first time, the names are exchanged as
        well. What was collected stays; see reset().

        Raises:
            ValueError: no rank has updated anything since reset(), or the weights of a metric add
                up to 0. Raised on all ranks.
            MydistError: the job failed; see mydist.errors.
        """
        sums = self._reduce() if self._agreed else None
        if sums is None:
            self._agree()
            sums = self._reduce()
        assert sums is not None, "names that were just agreed on are known"
        averages: dict[str, float] = {}
        for index, name in enumerate(self._agreed):
            updated, weighted, weight = sums[1 + 3 * index : 4 + 3 * index]
            if not updated:
                continue
            if weight == 0.0:
                raise ValueError(
                    f"Metrics.compute: the weights of '{name}' add up to 0 on all ranks together, "
                    "so it has no average; update it with a weight above 0"
                )
            averages[name] = weighted / weight
        if not averages:
            raise ValueError(
                "Metrics.compute: no rank has updated a metric since the start or reset(), "
                "expected at least one update(loss=…)"
            )
        return averages

    def reset(self) -> None:
        """Forgets what was collected on this rank, names included. Local; call it on all ranks."""
        self._totals.clear()

    def _agree(self) -> None:
        """Adds the names of all ranks to `_agreed`."""
        everyone = allgather_object(
            sorted(self._totals), name=f"{self._name}.names", process_set=self._process_set
        )
        self._agreed = sorted(set(self._agreed).union(*everyone))

    def _reduce(self) -> list[float] | None:
        """The sums over all ranks; None when some rank has a name that is not agreed on."""
        news = float(not self._totals.keys() <= set(self._agreed))
        numbers = [news]
        for name in self._agreed:
            total = self._totals.get(name, _Total())
            numbers += [float(name in self._totals), float(total.weighted), float(total.weight)]
        vector = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        name = f"{self._name}({', '.join(self._agreed)})"[:200]
        sums: list[float] = allreduce(
            vector, name=name, op=Sum, process_set=self._process_set
        ).tolist()
        return None if sums[0] > 0 else sums


def _as_float64(name: str, value: Any) -> _Sum:
    if isinstance(value, torch.Tensor):
        if value.numel() != 1:
            raise ValueError(
                f"Metrics.update: {name} has shape {list(value.shape)}, expected one number; pass "
                f"{name}.mean() with weight={name}.numel()"
            )
        if not value.is_complex():
            number = value.detach().reshape(())
            return number.item() * 1.0 if number.device.type == "cpu" else number.double()
    elif not isinstance(value, (str, bytes)) and hasattr(value, "__float__"):
        return float(value)
    kind = str(value.dtype) if isinstance(value, torch.Tensor) else type(value).__qualname__
    raise TypeError(
        f"Metrics.update: {name} is of type {kind}, expected a real number or a tensor of one "
        "element"
    )


def _check_weight(weight: float) -> None:
    if not 0.0 <= weight < math.inf:
        raise ValueError(
            f"Metrics.update: weight is {weight}, expected a finite number of at least 0, such as "
            "the number of samples in the batch"
        )


def _product(value: _Sum, weight: _Sum) -> _Sum:
    """value · weight, and 0 when the weight is: the mean of an empty batch is NaN."""
    if isinstance(weight, float):
        return value * weight if weight else 0.0
    product = torch.as_tensor(value, dtype=torch.float64, device=weight.device) * weight
    return torch.where(weight == 0, torch.zeros_like(product), product)
