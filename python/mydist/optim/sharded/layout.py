"""The layout: which parameters share a bucket, and which part of each a rank owns. Pure.

All ranks compute it from the same sizes, so nothing is exchanged. A bucket is a run of parameters
of one dtype, laid side by side, padded so that it falls into equal slices, one a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

# Slices begin on a line of the processor's cache.
LINE_BYTES = 64
# A bucket costs a meeting of the ranks, and memory: two of them are in flight. So they have a
# sixteenth of the parameters each, within these bounds.
LEAST_BUCKET_BYTES = 1 << 20
MOST_BUCKET_BYTES = 32 << 20


@dataclass(frozen=True)
class Piece:
    """The part of one parameter in one slice of its bucket; in elements.

    Attributes:
        index: of the parameter.
        start, length: where the piece lies in the flat parameter.
        offset: where it lies in the slice.
    """

    index: int
    start: int
    length: int
    offset: int


@dataclass(frozen=True)
class Bucket:
    """Parameters side by side. Each is (index, number of elements); sizes in elements."""

    dtype: torch.dtype
    members: tuple[tuple[int, int], ...]
    ranks: int

    @property
    def length(self) -> int:
        """Without padding."""
        return sum(count for _, count in self.members)

    @property
    def slice_length(self) -> int:
        """Of one rank, with padding."""
        line = LINE_BYTES // self.dtype.itemsize
        lines = -(-self.length // (line * self.ranks))
        return lines * line

    @property
    def padding(self) -> int:
        """Elements that belong to no parameter."""
        return self.slice_length * self.ranks - self.length

    def pieces(self, rank: int) -> list[Piece]:
        """What slice `rank` holds, in order. Parameters without a part in it are left out."""
        low = rank * self.slice_length
        high = low + self.slice_length
        found, at = [], 0
        for index, count in self.members:
            start, end = max(low, at), min(high, at + count)
            if start < end:
                found.append(Piece(index, start - at, end - start, start - low))
            at += count
        return found


def plan_buckets(
    sizes: Sequence[tuple[int, torch.dtype, int]], ranks: int, most_bytes: int | None = None
) -> list[Bucket]:
    """Buckets of these parameters (index, dtype, number of elements), in reverse order.

    Backward goes through parameters against the order in which they were made. A bucket has at most
    `most_bytes`, or one parameter. Empty parameters have no bucket.
    """
    if most_bytes is None:
        total = sum(dtype.itemsize * count for _, dtype, count in sizes)
        most_bytes = min(max(total // 16, LEAST_BUCKET_BYTES), MOST_BUCKET_BYTES)
    buckets: list[Bucket] = []
    open_members: dict[torch.dtype, list[tuple[int, int]]] = {}

    def close(dtype: torch.dtype) -> None:
        buckets.append(Bucket(dtype, tuple(open_members.pop(dtype)), ranks))

    for index, dtype, count in reversed(sizes):
        if count == 0:
            continue
        members = open_members.get(dtype, [])
        held = sum(size for _, size in members)
        if members and (held + count) * dtype.itemsize > most_bytes:
            close(dtype)
        open_members.setdefault(dtype, []).append((index, count))
    for dtype in list(open_members):
        close(dtype)
    return buckets
