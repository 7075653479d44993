"""signsgd: signs, and the vote on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from .codec import Codec

__all__ = ["SignSgd"]


@dataclass(frozen=True)
class SignSgd(Codec):
    """The majority of signs (Bernstein et al., arXiv:1802.04434 and arXiv:1810.05291).

    Every value of the reduced gradient is 1 or −1, so the learning rate is the length of a step:
    take one of its own. Each host has one vote, the sign of the sum over its ranks. With
    `force=True` each rank has one. A tie and a sum of 0 have no sign; a draw decides, another in
    each step. Nothing is kept of what was outvoted, so some problems need `onebit`. A slice with an
    infinite value or NaN arrives as NaN. n values take n ÷ 8 bytes and 4 per slice.

    Args:
        force: encode also between ranks of one host.
    """

    name: ClassVar[str] = "signsgd"
    is_vote: ClassVar[bool] = True
    force: bool = False
