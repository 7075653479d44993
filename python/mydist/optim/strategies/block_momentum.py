"""BlockMomentum: local steps, and a momentum over the rounds. Also known as BMUF."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .strategy import Strategy, add, check_flag, check_number, check_period

__all__ = ["BlockMomentum"]


@dataclass(eq=False)
class BlockMomentum(Strategy):
    """Local steps; each round moves the model by the mean change plus a momentum.

    With W the model, x the parameters of a rank and s what they started from in this round:
    D ← momentum · D + mean(x − s); W ← W + D. The next round starts from W, or with `nesterov`
    from W + momentum · D.

    Source: Chen and Huo, "Scalable Training of Deep Learning Machines by Incremental Block Training
    with Intra-Block Parallel Optimization and Blockwise Model-Update Filtering", ICASSP 2016.

    Memory: two copies of the parameters, the anchor W and D.

    Attributes:
        every: steps between rounds.
        momentum: from 0 to below 1; None is 1 − 1/size.
        nesterov: starts each round ahead of the model; `finish()` and `state_dict()` give W.
    """

    every: int
    momentum: float | None = None
    nesterov: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a wrong setting."""
        check_period("BlockMomentum", "every", self.every)
        if self.momentum is not None:
            check_number(
                "BlockMomentum",
                "momentum",
                self.momentum,
                lambda m: 0 <= m < 1,
                "from 0 to below 1",
            )
        check_flag("BlockMomentum", "nesterov", self.nesterov)
        self._is_ahead = False  # Whether this round started ahead of the anchor.

    def begin(self, job: Any) -> None:
        """Makes D."""
        super().begin(job)
        (self._part,) = self.parts
        self._moved = self._part.keep("momentum")
        self._factor = 1 - 1 / job.size if self.momentum is None else self.momentum

    def after_step(self, step: int) -> None:
        """Moves the model when it is time."""
        if step % self.every:
            return
        change = self._mean_change("round")
        for moved, of_round in zip(self._moved, change, strict=True):
            moved.mul_(self._factor).add_(of_round)
        add(self._part.anchor, self._moved)
        self._part.reset()
        self._is_ahead = self.nesterov
        if self._is_ahead:
            ahead = [flat.clone() for flat in self._part.anchor]
            add(ahead, self._moved, self._factor)
            self._part.write(ahead)

    def finish(self) -> None:
        """The anchors move by the mean change, without momentum."""
        add(self._part.anchor, self._mean_change("finish"))

    def finished(self) -> None:
        """The parameters are at the anchor."""
        self._is_ahead = False

    def state_dict(self) -> dict[str, Any]:
        """Whether this round started ahead of the anchor."""
        return {"is_ahead": self._is_ahead}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        self._is_ahead = bool(state["is_ahead"])

    def _mean_change(self, label: str) -> list[Any]:
        """The mean of x − s over the ranks."""
        change = self.job.average(self._part.change(), label)
        if self._is_ahead:
            add(change, self._moved, -self._factor)
        return change
