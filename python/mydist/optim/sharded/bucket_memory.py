"""BucketMemory: the memory of the buckets that are in flight, used again and again.

New memory for each bucket would cost more than the data that goes through it: the kernel clears
every page of it.
"""

from __future__ import annotations

import torch

from ... import _C
from .layout import Bucket


class BucketMemory:
    """Pieces of memory as long as the longest bucket. Owned by one optimizer, without threads."""

    def __init__(self) -> None:
        self._spare: list[torch.Tensor] = []
        self._bytes = 0

    def foresee(self, bucket: Bucket) -> None:
        """There are such buckets."""
        needed = bucket.padded_length * bucket.dtype.itemsize
        if needed > self._bytes:
            self._bytes = needed
            self._spare.clear()

    def take(self, bucket: Bucket, device: torch.device) -> torch.Tensor:
        """Memory for the whole bucket, with its padding; shape (padded_length,)."""
        if self._spare:
            memory = self._spare.pop()
        elif device.type == "cpu":
            memory = _C.empty_in_reach(self._bytes)
        else:
            memory = torch.empty(self._bytes, dtype=torch.uint8, device=device)
        return memory.view(bucket.dtype)[: bucket.padded_length]

    def give_back(self, whole: torch.Tensor) -> None:
        """Takes back memory of take() that is no longer in use."""
        memory = whole.new_empty(0, dtype=torch.uint8).set_(whole.untyped_storage())
        if memory.numel() == self._bytes:
            self._spare.append(memory)
