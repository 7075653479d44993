"""What a rank holds, in bytes: by the formulas of ZeRO, for the parameters that are really there.

Source: Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models,
arXiv:1910.02054, figure 1.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...job.error_text import check_whole, wrong_type
from ..wrapping import base_class
from .layout import Bucket, plan_buckets
from .units import units_of

__all__ = ["MemoryPlan", "MemoryUse", "memory_plan"]

_COLUMNS = ("parameters", "gradients", "optimizer", "buckets", "padding", "total")


@dataclass(frozen=True)
class MemoryUse:
    """Bytes of one rank, by what they are for. `total` is their sum.

    Attributes:
        parameters: as the model has them; of one copy per host, this rank's share of it.
        gradients: that last until the step.
        optimizer: its state, with a copy of the parameters in another dtype if it has one.
        buckets: stage 1: one, in flight. Stage 2: one in flight, one that is being filled, and the
            gradients that fill it. Stage 3: the two largest units, gathered.
        padding: slices are equally long and begin on a line of the cache.
        offloaded: what `offload="cpu"` moves to the memory of the CPU; not in `total`.
    """

    parameters: int
    gradients: int
    optimizer: int
    buckets: int = 0
    padding: int = 0
    offloaded: int = 0

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.gradients + self.optimizer + self.buckets + self.padding


@dataclass(frozen=True)
class MemoryPlan:
    """What the fullest rank of `size` ranks holds in each stage; `str()` of it is a table.

    Attributes:
        stage: the one that was asked for; `use` is its row.
        size: number of ranks.
        stages: bytes by stage. 0: every rank holds everything.
    """

    stage: int
    size: int
    stages: dict[int, MemoryUse]

    @property
    def use(self) -> MemoryUse:
        """Of the stage that was asked for."""
        return self.stages[self.stage]

    def __str__(self) -> str:
        names = [*_COLUMNS]
        if any(use.offloaded for use in self.stages.values()):
            names.append("offloaded")
        rows = [["stage", *names]]
        for stage, use in self.stages.items():
            mark = "*" if stage == self.stage else ""
            rows.append([f"{mark}{stage}", *(_gigabytes(getattr(use, name)) for name in names)])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [f"memory of one rank of {self.size}, in GB (10^9 bytes)"]
        lines += [
            "  ".join(f"{text:>{width}}" for text, width in zip(row, widths, strict=True))
            for row in rows
        ]
        return "\n".join(lines)


def memory_plan(
    model: torch.nn.Module,
    stage: int,
    size: int,
    optimizer: Any,
    *,
    master_dtype: torch.dtype | None = None,
    offload: str | None = None,
) -> MemoryPlan:
    """How much memory training takes on each rank: `print(md.memory_plan(model, 2, 8, AdamW))`.

    Needs no job and no memory: the model may be on the meta device. Activations are not counted.

    Args:
        model: its parameters are counted, those that are frozen without gradient and state.
        stage: 0 (every rank holds everything), 1, 2 or 3 (`fully_shard`).
        size: number of ranks.
        optimizer: a class such as torch.optim.AdamW, a function of the parameters, or an optimizer.
            One step on a parameter of 64 elements shows how much state it keeps.
        master_dtype: of a further copy of the parameters in the optimizer, torch.float32 as a rule.
        offload: "cpu": in stages 1 and 2 the state, with a copy of the slice, is in the memory of
            the CPU. Parameters are on a GPU then.

    Raises:
        TypeError: `model` is no module, or `optimizer` makes no optimizer.
        ValueError: `stage` or `size` is out of range, or `offload` is another text.
    """
    if not isinstance(model, torch.nn.Module):
        raise wrong_type("memory_plan: model", model, "a torch.nn.Module")
    if check_whole("memory_plan: stage", stage) not in range(4):
        raise ValueError(f"memory_plan: stage is {stage}, expected 0, 1, 2 or 3")
    if check_whole("memory_plan: size", size) < 1:
        raise ValueError(f"memory_plan: size is {size}, expected a number of ranks of at least 1")
    if offload not in (None, "cpu"):
        raise ValueError(f"memory_plan: offload is {offload!r}, expected 'cpu' or None")
    make = _maker(optimizer)
    counts = _Counts(list(model.parameters()), size, make, master_dtype, offload is not None)
    stages = {0: counts.of_everything(), 1: counts.of_stage_1(), 2: counts.of_stage_2()}
    stages[3] = counts.of_stage_3(units_of(model))
    return MemoryPlan(stage, size, stages)


class _Counts:
    """Bytes of the fullest rank, which is rank 0: padding is at the end of a bucket."""

    def __init__(
        self,
        parameters: Sequence[torch.Tensor],
        size: int,
        make: Callable[[list[torch.Tensor]], Any],
        master_dtype: torch.dtype | None,
        offloads: bool,
    ) -> None:
        self._size, self._offloads = size, offloads
        self._whole = _bytes_of(parameters)
        self._trained = [p for p in parameters if p.requires_grad]
        self._master_dtype = master_dtype
        dtypes = {p.dtype for p in self._trained}
        self._per_element = {
            dtype: _state_bytes(make, master_dtype or dtype)
            + (master_dtype.itemsize if master_dtype not in (None, dtype) else 0)
            for dtype in dtypes
        }
        sizes = [(i, p.dtype, p.numel()) for i, p in enumerate(self._trained)]
        self._buckets = plan_buckets(sizes, size)

    def of_everything(self) -> MemoryUse:
        states = sum(p.numel() * self._per_element[p.dtype] for p in self._trained)
        return MemoryUse(self._whole, _bytes_of(self._trained), states)

    def of_stage_1(self) -> MemoryUse:
        live = bucket_bytes(self._buckets, self._size, 1)
        states, offloaded = self._sliced_states()
        gradients = _bytes_of(self._trained)
        return MemoryUse(self._whole, gradients, states, live, offloaded=offloaded)

    def of_stage_2(self) -> MemoryUse:
        gradients = sum(owned(b, 0) * b.dtype.itemsize for b in self._buckets)
        padding = sum((b.slice_length(0) - owned(b, 0)) * b.dtype.itemsize for b in self._buckets)
        live = bucket_bytes(self._buckets, self._size, 2)
        states, offloaded = self._sliced_states()
        return MemoryUse(self._whole, gradients, states, live, padding, offloaded)

    def of_stage_3(self, units: Iterable[Sequence[torch.Tensor]]) -> MemoryUse:
        """FSDP2 cuts along the first dimension; a slice has whole rows."""
        rows = {id(p): _rows(p, self._size) for unit in units for p in unit}
        held = sum(rows[id(p)] * p.dtype.itemsize for unit in units for p in unit)
        gradients = sum(rows[id(p)] * p.dtype.itemsize for p in self._trained)
        states = sum(rows[id(p)] * self._per_element[p.dtype] for p in self._trained)
        gathered = sum(sorted(map(_bytes_of, units))[-2:])
        return MemoryUse(held, gradients, states, gathered)

    def _sliced_states(self) -> tuple[int, int]:
        """Beside the parameters, and offloaded."""
        states = sum(owned(b, 0) * self._per_element[b.dtype] for b in self._buckets)
        if not self._offloads:
            return states, 0
        copies = sum(owned(b, 0) * self._copied(b.dtype) for b in self._buckets)
        return 0, states + copies

    def _copied(self, dtype: torch.dtype) -> int:
        """Bytes per element of a copy that is not counted as one in another dtype."""
        return dtype.itemsize if self._master_dtype in (None, dtype) else 0


def owned(bucket: Bucket, rank: int) -> int:
    """Elements of parameters in this rank's slice."""
    return sum(piece.length for piece in bucket.pieces(rank))


def bucket_bytes(buckets: Sequence[Bucket], size: int, stage: int) -> int:
    """Of the buckets that live at once. One rank alone has none in stage 1."""
    if size == 1 and stage == 1:
        return 0
    longest = max((b.padded_length * b.dtype.itemsize for b in buckets), default=0)
    return longest * min(1 if stage == 1 else 3, len(buckets))


def _bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.dtype.itemsize for tensor in tensors)


def _rows(parameter: torch.Tensor, size: int) -> int:
    """Elements of the largest slice along the first dimension."""
    if parameter.dim() == 0 or parameter.numel() == 0:
        return parameter.numel()
    return -(-parameter.shape[0] // size) * (parameter.numel() // parameter.shape[0])


def _maker(optimizer: Any) -> Callable[[list[torch.Tensor]], Any]:
    """A function that makes an optimizer like this one for other parameters."""
    if isinstance(optimizer, torch.optim.Optimizer):
        base = base_class(optimizer)
        # Some optimizers keep more in `defaults` than they can be made with.
        known = inspect.signature(base.__init__).parameters
        given = {key: value for key, value in optimizer.defaults.items() if key in known}
        return lambda parameters: base(parameters, **given)
    if not callable(optimizer):
        raise wrong_type("memory_plan: optimizer", optimizer, "a class such as torch.optim.AdamW")
    return optimizer  # type: ignore[no-any-return]


def _state_bytes(make: Callable[[list[torch.Tensor]], Any], dtype: torch.dtype) -> int:
    """Of state for each element, found by one step. Numbers that are kept once do not count."""
    probe = torch.nn.Parameter(torch.zeros(64, dtype=dtype, device="cpu"))
    optimizer = make([probe])
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise wrong_type(
            "memory_plan: optimizer", optimizer, "a function that returns a torch.optim.Optimizer"
        )
    probe.grad = torch.zeros_like(probe)
    optimizer.step()
    kept = [v for v in optimizer.state[probe].values() if isinstance(v, torch.Tensor)]
    return sum(value.dtype.itemsize for value in kept if value.shape == probe.shape)


def _gigabytes(count: int) -> str:
    return f"{count / 1e9:.4g}"
