"""SlowMo: local steps, and a slow momentum in units of gradients."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from .strategy import Strategy, check_number, check_period

__all__ = ["SlowMo"]


@dataclass(eq=False)
class SlowMo(Strategy):
    """Local steps; each round takes a slow step with momentum along the mean change.

    With W the model, x the parameters of a rank and γ the learning rate at the round:
    u ← beta · u + (W − mean(x)) / γ; W ← W − alpha · γ · u. All ranks start again from W.

    Source: Wang et al., "SlowMo: Improving Communication-Efficient Distributed SGD with Slow
    Momentum", arXiv:1910.00643. It equals BlockMomentum with momentum=beta while γ is constant.

    Memory: two copies of the parameters, the anchor W and u.

    Attributes:
        every: steps between rounds.
        beta: the slow momentum, from 0 to below 1.
        alpha: the slow learning rate.
    """

    every: int
    beta: float = 0.7
    alpha: float = 1.0

    def __post_init__(self) -> None:
        """Raises ValueError for a wrong setting."""
        check_period("SlowMo", "every", self.every)
        check_number("SlowMo", "beta", self.beta, lambda b: 0 <= b < 1, "from 0 to below 1")
        check_number("SlowMo", "alpha", self.alpha, lambda a: 0 < a < inf, "above 0")

    def begin(self, job: Any) -> None:
        """Makes u. Raises ValueError for an optimizer without a learning rate."""
        super().begin(job)
        (self._part,) = self.parts
        job.learning_rates(self._part)
        self._slow = self._part.keep("momentum")

    def after_step(self, step: int) -> None:
        """Takes the slow step when it is time."""
        if step % self.every:
            return
        change = self.job.average(self._part.change(), "round")
        rates = self.job.learning_rates(self._part)
        for anchor, slow, moved, rate in zip(
            self._part.anchor, self._slow, change, rates, strict=True
        ):
            slow.mul_(self.beta)
            if rate:
                # Not by alpha=…, which has the dtype of the tensors: float16 has no 1 / 1e-5.
                slow.sub_(moved.div_(rate))
                anchor.sub_(torch.mul(slow, self.alpha * rate, out=moved))
            else:  # What the rule tends to: steps of this round may have had other rates.
                anchor.add_(moved, alpha=self.alpha)
        self._part.reset()
