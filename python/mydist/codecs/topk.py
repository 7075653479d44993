"""topk: the values that are largest in magnitude, with their indices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .codec import Codec

__all__ = ["TopK"]


@dataclass(frozen=True)
class TopK(Codec):
    """The values largest in magnitude (Aji and Heafield, arXiv:1704.05021; Alistarh et al.,
    arXiv:1809.10505).

    Of n values ⌈ratio × n⌉ travel, exactly, each with its index in 8 bytes; of equal ones the
    first. From a ratio of a half on all values travel. What was not sent is added to the next
    gradient. Every rank gets the payloads of all hosts.

    Args:
        ratio: the share of the values that travel, above 0 and up to 1.
        force: encode also between ranks of one host.

    Raises:
        ValueError: `ratio` is out of range.
    """

    name: ClassVar[str] = "topk"
    way: ClassVar[str] = "gathers"
    ratio: float = 0.01
    force: bool = False

    def __post_init__(self) -> None:
        self._check_number("ratio", 0, 1)
