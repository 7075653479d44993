"""randomk: values at random places, the same on all ranks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .codec import Codec, CodecCore

__all__ = ["RandomK"]


@dataclass(frozen=True)
class RandomK(Codec):
    """Values at random places (Stich et al., arXiv:1809.07599).

    A gradient of n values is cut into ⌈ratio × n⌉ pieces of about equal length, and one value of
    each piece travels. All ranks draw the same ones from seed, name and step, so that no index
    travels and an allreduce adds up 4 bytes for each. What was not sent is added to the next
    gradient.

    Args:
        ratio: the share of the values that travel, above 0 and up to 1.
        seed: of the draws, 0 to 2**63 − 1; equal on all ranks.
        force: encode also between ranks of one host.

    Raises:
        ValueError: an argument is out of range.
    """

    name: ClassVar[str] = "randomk"
    way: ClassVar[str] = "drawn sums"
    ratio: float = 0.01
    seed: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        self._check_number("ratio", 0, 1)
        self._check_seed()

    def core(self) -> CodecCore:
        """There is none: the values travel as they are."""
        raise TypeError("Compression.randomk has no payloads; its values are added up as they are")
