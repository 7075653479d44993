"""Cuts of the tensors of a bucket. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Cut:
    """A range of values of one tensor of a bucket."""

    tensor: int
    begin: int
    count: int


def slices_of(lengths: Sequence[int], parts: int, block: int) -> list[list[Cut]]:
    """Every tensor in `parts` slices of about equal length, cut at multiples of the block.

    By part, the cuts of all tensors; empty ones are left out.
    """
    slices: list[list[Cut]] = [[] for _ in range(parts)]
    for tensor, length in enumerate(lengths):
        blocks = -(-length // block)
        ends = [min(length, blocks * (part + 1) // parts * block) for part in range(parts)]
        for part, (begin, end) in enumerate(zip([0, *ends], ends, strict=False)):
            if end > begin:
                slices[part].append(Cut(tensor, begin, end - begin))
    return slices


def packed(cuts: Iterable[Cut]) -> list[Cut]:
    """The same ranges, each a tensor of its own."""
    return [Cut(index, 0, cut.count) for index, cut in enumerate(cuts)]


def as_table(cuts: Iterable[Cut]) -> torch.Tensor:
    """As the core takes them: int64, shape (n, 3)."""
    rows = [(cut.tensor, cut.begin, cut.count) for cut in cuts]
    return torch.tensor(rows, dtype=torch.int64, device="cpu").reshape(-1, 3)


def views(values: Sequence[torch.Tensor], cuts: Iterable[Cut]) -> list[torch.Tensor]:
    """The ranges, as views of the flat tensors."""
    return [values[cut.tensor][cut.begin : cut.begin + cut.count] for cut in cuts]
