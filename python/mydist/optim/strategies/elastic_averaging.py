"""ElasticAveraging: ranks explore on their own, held near a common centre. Also known as EASGD."""

from __future__ import annotations

from dataclasses import dataclass

from .strategy import Strategy, add, check_number, check_period

__all__ = ["ElasticAveraging"]


@dataclass(eq=False)
class ElasticAveraging(Strategy):
    """Local steps; each round draws ranks and centre towards each other, and neither gives way.

    With c the centre, x the parameters of a rank and α = beta / size, all from before the round:
    x ← x − α (x − c); c ← c + α · sum over ranks of (x − c). While ranks are in join(), the sum is
    that of the others times size / their number.

    Source: Zhang, Choromanska and LeCun, "Deep learning with Elastic Averaging SGD",
    arXiv:1412.6651. `finish()` gives the centre, and all ranks continue from it. Buffers stay those
    of each rank until then.

    Memory: one copy of the parameters, the centre.

    Attributes:
        every: steps between rounds.
        beta: how strongly they draw, above 0 and up to 1.
        synchronous: False needs a parameter server, which this version does not have.
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
        if not self.synchronous:
            raise ValueError(
                "ElasticAveraging: synchronous=False needs a parameter server, which this version "
                "of mydist does not have; use synchronous=True"
            )

    def after_step(self, step: int) -> None:
        """Draws ranks and centre together when it is time."""
        if step % self.every:
            return
        (part,) = self.parts
        change = part.change()
        now = [centre + moved for centre, moved in zip(part.anchor, change, strict=True)]
        add(now, change, -self.beta / self.job.size)
        mean = self.job.average(change, "round", buffers=False)
        add(part.anchor, mean, self.beta)
        part.write(now)

    def finish(self) -> None:
        """The anchors are the centre already; the buffers become their mean."""
        self.job.average([], "finish")
