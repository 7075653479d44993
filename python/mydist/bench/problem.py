"""Problem: one collective on tensors of one size, filled anew before and checked after every call.

Values are small whole numbers that differ by element, rank and iteration, so that every dtype
holds them exactly and a misplaced element shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

COLLECTIVES = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier")
ROOT = 0
_PERIOD = 7


class WrongResult(Exception):
    """An implementation gave something else than it should; the text says what."""


def offset(rank: int, iteration: int) -> int:
    """What is added to the pattern of every rank's tensor in that iteration."""
    return (rank * 3 + iteration) % 5


@dataclass(frozen=True)
class Shape:
    """Of a problem. `size_bytes` is what a rank puts in; alltoall and reducescatter round it up."""

    op: str
    dtype: torch.dtype
    size_bytes: int
    rank: int
    ranks: int

    @property
    def elements(self) -> int:
        """How many a rank puts in; at least one, 0 for barrier."""
        if self.op == "barrier":
            return 0
        count = max(1, self.size_bytes // self.dtype.itemsize)
        if self.op in ("alltoall", "reducescatter"):
            count = -(-count // self.ranks) * self.ranks
        return count

    @property
    def touched_bytes(self) -> int:
        """Bytes that the memory of a rank must give or take, without any copy: loads and stores."""
        size, ranks = self.elements * self.dtype.itemsize, self.ranks
        if self.op == "allgather":
            return 2 * size * ranks
        if self.op == "reducescatter":
            return size + size // ranks
        return 2 * size


@dataclass(frozen=True)
class Plan:
    """What is measured. Sizes in bytes per rank; iterations are per size and round."""

    op: str
    sizes: Sequence[int]
    dtype: torch.dtype
    rounds: int
    iterations: int | None = None
    together: bool = False  # Whether a peer times several short calls as one.

    def iterations_at(self, size_bytes: int) -> int:
        """As given, else as many as take well below a second."""
        return self.iterations or max(3, min(200, (16 << 20) // max(size_bytes, 1)))

    def calls_at(self, size_bytes: int) -> int:
        """That are timed together: their tensors stay in a core's cache."""
        return max(1, min(32, (128 << 10) // max(size_bytes, 1))) if self.together else 1

    def shape(self, size_bytes: int, rank: int, ranks: int) -> Shape:
        """Of a rank's problem."""
        return Shape(self.op, self.dtype, size_bytes, rank, ranks)


class Problem:
    """The tensor that a rank puts in, and the check of what it gets."""

    def __init__(self, shape: Shape) -> None:
        """Allocates the input; its shape is (elements,)."""
        self.shape = shape
        self.input = torch.empty(shape.elements, dtype=shape.dtype)
        self._pattern = torch.arange(shape.elements, dtype=torch.int32).remainder_(_PERIOD)
        self._pattern = self._pattern.to(shape.dtype)

    def fill(self, iteration: int) -> None:
        """Rewrites the input."""
        torch.add(self._pattern, offset(self.shape.rank, iteration), out=self.input)

    def check(self, output: torch.Tensor, iteration: int, implementation: str) -> None:
        """Raises WrongResult unless `output` is what the op makes of all ranks' inputs."""
        expected = self._expected(iteration)
        if output.numel() != expected.numel():
            raise WrongResult(
                f"{implementation}: {self.shape.op} gave {output.numel()} elements on rank "
                f"{self.shape.rank}, expected {expected.numel()}"
            )
        wrong = output.view(-1).ne(expected)
        if bool(wrong.any()):
            at = int(wrong.nonzero()[0])
            raise WrongResult(
                f"{implementation}: {self.shape.op} of {self.shape.size_bytes} bytes gave a wrong "
                f"result on rank {self.shape.rank}: element {at} of {expected.numel()} is "
                f"{output.view(-1)[at].item()}, expected {expected[at].item()}"
            )

    def _expected(self, iteration: int) -> torch.Tensor:
        op, rank, ranks = self.shape.op, self.shape.rank, self.shape.ranks
        offsets = [offset(r, iteration) for r in range(ranks)]
        if op == "allreduce":
            return self._pattern * ranks + sum(offsets)
        if op == "broadcast":
            return self._pattern + offsets[ROOT]
        if op == "allgather":
            return torch.cat([self._pattern + value for value in offsets])
        if op == "barrier":
            return self._pattern
        own = self._pattern.chunk(ranks)[rank]
        if op == "alltoall":
            return torch.cat([own + value for value in offsets])
        return own * ranks + sum(offsets)
