"""The ways in which payloads travel, by the name that a codec has for it."""

from __future__ import annotations

from collections.abc import Callable

from .drawn_sums import DrawnSums
from .exchange import BucketPlan, Exchange
from .gather import Gather
from .low_rank_sums import LowRankSums
from .two_phase import TwoPhase

EXCHANGES: dict[str, Callable[[BucketPlan], Exchange]] = {
    "slices": TwoPhase,
    "gathers": Gather,
    "drawn sums": DrawnSums,
    "low-rank sums": LowRankSums,
}
