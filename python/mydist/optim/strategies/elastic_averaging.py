"""ElasticAveraging: ranks explore on their own, held near a common centre. Also known as EASGD."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...ps.rules import Elastic, Rule
from .served import ServedStrategy
from .strategy import Strategy, add, check_flag, check_number, check_period

__all__ = ["ElasticAveraging"]


@dataclass(eq=False)
class ElasticAveraging(ServedStrategy):
    """Local steps; each round draws ranks and centre towards each other, and neither gives way.

    With c the centre, x the parameters of a rank and α = beta / size, all from before the round:
    x ← x − α (x − c); c ← c + α · sum over ranks of (x − c). While ranks are in join(), the sum is
    that of the others times size / their number.

    With `synchronous=False` the centre is on the servers of the job, and each rank does this alone
    when its own round is due: x ← x − e; c ← c + e; e = α (x − c). No rank waits for another. This
    is AEASGD, and with an optimizer such as SGD(momentum=0.9, nesterov=True) EAMSGD.

    Source: Zhang, Choromanska and LeCun, "Deep learning with Elastic Averaging SGD",
    arXiv:1412.6651. `finish()` gives the centre, and all ranks continue from it. Buffers stay those
    of each rank until then.

    Memory: one copy of the parameters, the centre; with `synchronous=False` two, the anchor and
    the centre as it was read last.

    Attributes:
        every: steps between rounds.
        beta: how strongly they draw, above 0 and up to 1.
        synchronous: whether all ranks meet for a round.
    """

    every: int = 10
    beta: float = 0.9
    synchronous: bool = True

    def __post_init__(self) -> None:
        """Raises ValueError for a wrong setting."""
        check_period("ElasticAveraging", "every", self.every)
        check_number(
            "ElasticAveraging", "beta", self.beta, lambda b: 0 < b <= 1, "above 0 and up to 1"
        )
        check_flag("ElasticAveraging", "synchronous", self.synchronous)

    def begin(self, job: Any) -> None:
        """Raises ValueError where a rank alone would become the centre, and the centre the rank."""
        (Strategy if self.synchronous else ServedStrategy).begin(self, job)
        (self._part,) = self.parts
        self._alpha = self.beta / job.size
        if not self.synchronous and self._alpha == 1:
            raise ValueError(
                "ElasticAveraging(synchronous=False): beta / size is 1, expected below 1"
            )

    def served_rule(self) -> Rule:
        """Draws the centre towards what is pushed."""
        return Elastic(alpha=self._alpha)

    def after_step(self, step: int) -> None:
        """Draws ranks and centre together when it is time."""
        if not self.synchronous:
            self.open()
        if step % self.every == 0:
            self._round() if self.synchronous else self._round_alone()

    def finish(self) -> None:
        """The anchors become the centre, or are it already; the buffers become their mean."""
        if self.synchronous:
            self.job.average([], "finish")
        else:
            super().finish()

    def state_dict(self) -> dict[str, Any]:
        """The centre as it was read last, unless the anchor is the centre."""
        return {} if self.synchronous else super().state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave, also with the other `synchronous`."""
        if not self.synchronous:
            super().load_state_dict(state)
        elif "model" in state:
            for anchor, flat in zip(self._part.anchor, self.flats(state["model"]), strict=True):
                anchor.copy_(flat)

    def _round(self) -> None:
        part = self._part
        change = part.change()
        now = [centre + moved for centre, moved in zip(part.anchor, change, strict=True)]
        add(now, change, -self._alpha)
        mean = self.job.average(change, "round", buffers=False)
        add(part.anchor, mean, self.beta)
        part.write(now)

    def _round_alone(self) -> None:
        now = self._part.read()
        # The answer is the centre c + e, so x minus it is (1 − α) (x − c), and e this times:
        factor = self._alpha / (1 - self._alpha)
        for own, centre in zip(now, self.push_pull(now), strict=True):
            own.sub_(own - centre, alpha=factor)
        self._part.write(now)
