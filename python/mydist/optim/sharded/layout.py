"""The layout: which parameters share a bucket, and which part of each a rank owns. Pure.

All ranks compute it from the same sizes, so nothing is exchanged. A bucket is a run of parameters
of one dtype, laid side by side, padded so that it falls into equal slices, one a rank. Or whole
parameters have owners: then a bucket has parameters of one owner, whose slice is the whole of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    """Parameters side by side. Each is (index, number of elements); sizes in elements.

    Attributes:
        owner: the rank that has all of it; None: each rank has a slice.
    """

    dtype: torch.dtype
    members: tuple[tuple[int, int], ...]
    ranks: int
    owner: int | None = None

    @property
    def length(self) -> int:
        """Without padding."""
        return sum(count for _, count in self.members)

    @property
    def padded_length(self) -> int:
        """Of all slices."""
        if self.owner is not None:
            return self.length
        line = LINE_BYTES // self.dtype.itemsize
        lines = -(-self.length // (line * self.ranks))
        return lines * line * self.ranks

    @property
    def padding(self) -> int:
        """Elements that belong to no parameter."""
        return self.padded_length - self.length

    def bounds(self, rank: int) -> tuple[int, int]:
        """Where the slice of a rank begins and ends, with padding."""
        if self.owner is not None:
            return (0, self.length if rank == self.owner else 0)
        length = self.padded_length // self.ranks
        return rank * length, (rank + 1) * length

    def slice_length(self, rank: int) -> int:
        """Of one rank, with padding."""
        low, high = self.bounds(rank)
        return high - low

    def pieces(self, rank: int) -> list[Piece]:
        """What slice `rank` holds, in order. Parameters without a part in it are left out."""
        low, high = self.bounds(rank)
        found, at = [], 0
        for index, count in self.members:
            start, end = max(low, at), min(high, at + count)
            if start < end:
                found.append(Piece(index, start - at, end - start, start - low))
            at += count
        return found


def owners(
    sizes: Sequence[tuple[int, torch.dtype, int]], ranks: int, present: Sequence[Bucket] = ()
) -> dict[int, int]:
    """By index, the rank that owns the parameter. The largest goes first, to the least load."""
    loads = [0] * ranks
    for bucket in present:
        loads[bucket.owner or 0] += bucket.length * bucket.dtype.itemsize
    chosen = {}
    for index, dtype, count in sorted(sizes, key=lambda size: -size[1].itemsize * size[2]):
        chosen[index] = loads.index(min(loads))
        loads[chosen[index]] += dtype.itemsize * count
    return chosen


def plan_buckets(
    sizes: Sequence[tuple[int, torch.dtype, int]],
    ranks: int,
    most_bytes: int | None = None,
    owner_of: Mapping[int, int] | None = None,
) -> list[Bucket]:
    """Buckets of these parameters (index, dtype, number of elements), in reverse order.

    Backward goes through parameters against the order in which they were made. A bucket has at most
    `most_bytes`, or one parameter. Empty parameters have no bucket.

    Args:
        owner_of: by index, the owner of the whole parameter. None: all ranks own slices.
    """
    if most_bytes is None:
        total = sum(dtype.itemsize * count for _, dtype, count in sizes)
        most_bytes = min(max(total // 16, LEAST_BUCKET_BYTES), MOST_BUCKET_BYTES)
    buckets: list[Bucket] = []
    open_members: dict[tuple[torch.dtype, int | None], list[tuple[int, int]]] = {}

    def close(kind: tuple[torch.dtype, int | None]) -> None:
        dtype, owner = kind
        buckets.append(Bucket(dtype, tuple(open_members.pop(kind)), ranks, owner))

    for index, dtype, count in reversed(sizes):
        if count == 0:
            continue
        kind = (dtype, None if owner_of is None else owner_of[index])
        members = open_members.get(kind, [])
        held = sum(size for _, size in members)
        if members and (held + count) * dtype.itemsize > most_bytes:
            close(kind)
        open_members.setdefault(kind, []).append((index, count))
    for kind in list(open_members):
        close(kind)
    return buckets
