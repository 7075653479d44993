"""powersgd: matrices as products of two narrow ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from .codec import Codec, CodecCore

__all__ = ["PowerSGD"]


@dataclass(frozen=True)
class PowerSGD(Codec):
    """Gradients as products of two narrow matrices (Vogels et al., arXiv:1905.13727, algorithm 1).

    A gradient of at least 2 dimensions is a matrix M of shape[0] rows. P = M·Q is summed over the
    ranks and orthogonalised, Q = Mᵀ·P is summed, and M ≈ P·Qᵀ. The next step begins with this Q.
    What was not sent is added to the next gradient. Two allreduces take 4 × rank × (rows + columns)
    bytes. Vectors, and matrices for which that is not less, travel as they are.

    Args:
        rank: columns of P and Q, 1 to 64.
        start: before this step gradients travel as they are.
        seed: of the first Q, 0 to 2**63 − 1; equal on all ranks.
        force: encode also between ranks of one host.

    Raises:
        ValueError: an argument is out of range.
    """

    name: ClassVar[str] = "powersgd"
    way: ClassVar[str] = "low-rank sums"
    rank: int = 2
    start: int = 0
    seed: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        self._check_count("rank", 1, 64)
        self._check_count("start", 0, 1 << 31)
        self._check_seed()

    def takes(self, shape: tuple[int, ...]) -> bool:
        if len(shape) < 2 or 0 in shape:
            return False
        rows, columns = shape[0], math.prod(shape[1:])
        return self.rank * (rows + columns) < rows * columns

    def core(self) -> CodecCore:
        """There is none: P and Q travel as they are."""
        raise TypeError("Compression.powersgd has no payloads; P and Q are added up as they are")
