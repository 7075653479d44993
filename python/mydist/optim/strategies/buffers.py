"""Buffers: the running statistics of a model, as ranks average them."""

from __future__ import annotations

from collections.abc import Sequence

import torch


class Buffers:
    """Tensors of a model that are no parameters: averages are floats, counters are integers.

    Buffers of other dtypes, bool for example, are left as they are.

    Attributes:
        averages, counters: both kinds.
    """

    def __init__(self, buffers: Sequence[torch.Tensor]) -> None:
        numbers = [b for b in buffers if b.dtype != torch.bool and not b.is_complex()]
        self.averages = [buffer for buffer in numbers if buffer.is_floating_point()]
        self.counters = [buffer for buffer in numbers if not buffer.is_floating_point()]

    @property
    def tensors(self) -> list[torch.Tensor]:
        """All of them, averages first."""
        return self.averages + self.counters

    def read(self, gives_counters: bool) -> list[torch.Tensor]:
        """Copies to be summed over ranks; counters are zeros unless this rank gives them."""
        counters = [
            buffer.detach().clone() if gives_counters else torch.zeros_like(buffer)
            for buffer in self.counters
        ]
        return [buffer.detach().clone() for buffer in self.averages] + counters

    def write(self, values: Sequence[torch.Tensor], with_counters: bool = True) -> None:
        """Overwrites the buffers with what became of the tensors that `read` gave, if any."""
        buffers = self.averages + (self.counters if with_counters else [])
        with torch.no_grad():
            for buffer, value in zip(buffers, values, strict=False):
                buffer.copy_(value)
