"""What a rank of mydist.run reports when its call has returned or raised. Private."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Result:
    """What a rank's call returned; travels pickled from the rank."""

    rank: int
    kind: str  # The name of its class.
    data: bytes  # It, pickled.


@dataclass(frozen=True)
class Failure:
    """How a rank's call ended when it raised; travels pickled from the rank."""

    rank: int
    at: float  # time.time() of the rank
    text: str  # the traceback
    error: bytes  # the pickled exception; empty when it could not be pickled
    is_consequence: bool  # the rank failed because another one did
