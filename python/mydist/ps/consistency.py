"""When a push is applied, and which pulls wait for other workers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..job.error_text import wrong_type
from .ranges import check_between

__all__ = ["SSP", "Async", "Consistency", "Sync"]

_MOST = (1 << 63) - 1


@dataclass(frozen=True)
class Consistency:
    """The base of Sync, SSP and Async.

    Attributes:
        kind: its name in messages.
        bound: the number that it has; 0 where it has none.
    """

    @property
    def kind(self) -> str:
        """The name of the consistency."""
        raise NotImplementedError

    @property
    def bound(self) -> int:
        """Its number."""
        return 0


@dataclass(frozen=True)
class Sync(Consistency):
    """The mean over all workers is applied once each of them has pushed.

    The gradients are added in the order of the workers, so results repeat bit for bit on any number
    of servers. A pull waits for the clock of this worker's last push.

    Attributes:
        backup: how many workers a clock does not wait for; their late pushes are dropped. Source:
            Chen et al. 2016, "Revisiting distributed synchronous SGD", arXiv:1604.00981.
    """

    backup: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError for a negative number, TypeError for what is no int."""
        _check("Sync: backup", self.backup)

    @property
    def kind(self) -> str:
        """ "sync"."""
        return "sync"

    @property
    def bound(self) -> int:
        """The backup workers."""
        return self.backup


@dataclass(frozen=True)
class SSP(Consistency):
    """Stale-synchronous: each push is applied alone, and a worker may be `bound` clocks ahead.

    A pull waits while its worker has pushed more than so many times more often than the slowest
    one. It hides slowness that passes, not a worker that is always slow. Source: Ho et al. 2013,
    "More effective distributed ML via a stale synchronous parallel parameter server".

    Attributes:
        staleness: the largest lead, in pushes; 0 waits for all.
    """

    staleness: int = 3

    def __post_init__(self) -> None:
        """Raises ValueError for a negative number, TypeError for what is no int."""
        _check("SSP: staleness", self.staleness)

    @property
    def kind(self) -> str:
        """ "ssp"."""
        return "ssp"

    @property
    def bound(self) -> int:
        """The largest lead."""
        return self.staleness


@dataclass(frozen=True)
class Async(Consistency):
    """Each push is applied alone, and no pull waits."""

    @property
    def kind(self) -> str:
        """ "async"."""
        return "async"


def check_consistency(what: str, value: Any) -> None:
    """Raises TypeError for what is no consistency; `what` names the call and the argument."""
    if not isinstance(value, Consistency):
        raise wrong_type(what, value, "md.ps.Sync(), md.ps.SSP(3) or md.ps.Async()")


def _check(what: str, value: int) -> None:
    check_between(what, value, 0, _MOST)
