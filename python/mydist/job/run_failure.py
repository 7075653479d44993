"""What a rank of mydist.run reports when its call raised. Private."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """How a rank's call ended when it raised; travels pickled from the rank."""

    rank: int
    at: float  # time.time() of the rank
    text: str  # the traceback
    error: bytes  # the pickled exception; empty when it could not be pickled
    is_consequence: bool  # the rank failed because another one did
