"""Downpour: local steps; servers get the gradients now and then, and give new parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ...ps.rules import Adagrad, Rule, check_rule
from .part import Tensors
from .served import ServedStrategy
from .strategy import add, check_period

__all__ = ["Downpour"]


@dataclass(eq=False)
class Downpour(ServedStrategy):
    """Local steps; the sum of their gradients is pushed now and then, and parameters fetched.

    The wrapped optimizer takes the local steps, as a rule plain SGD. The servers step by `rule`, at
    a rate of its own, along the sum of the gradients since this rank's last push. Fetching drops
    what the local steps have changed. No rank waits for another. Buffers stay those of each rank
    until `finish()`. A checkpoint has no gradients that are not pushed yet.

    Source: Dean et al. 2012, "Large scale distributed deep networks" (DistBelief). There one
    replica trains alone first; here the first steps average the gradients of all ranks.

    Memory: three copies of the parameters, the anchor, what was fetched last and the sum; on the
    servers the parameters in float32 and the state of the rule.

    Attributes:
        push_every: steps between pushes. Long periods diverge where the rule's rate suits short
            ones, as sums grow with them.
        fetch_every: steps between fetches.
        warm_start_steps: how many steps average gradients first.
        rule: md.ps.Adagrad(lr=0.01) unless said otherwise.
    """

    push_every: int = 1
    fetch_every: int = 1
    warm_start_steps: int = 0
    rule: Rule = Adagrad()  # noqa: RUF009 - it is frozen
    pushes_gradients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raises ValueError for a wrong period, TypeError for what is no rule."""
        check_period("Downpour", "push_every", self.push_every)
        check_period("Downpour", "fetch_every", self.fetch_every)
        check_period("Downpour", "warm_start_steps", self.warm_start_steps, least=0)
        check_rule("Downpour: rule", self.rule)
        self._sum: Tensors = []

    def begin(self, job: Any) -> None:
        """Starts a sum."""
        super().begin(job)
        self._sum = [flat.new_zeros(flat.shape) for flat in self._part.anchor]

    def before_step(self, step: int) -> bool:
        """Local after the warm start."""
        return step >= self.warm_start_steps

    def served_rule(self) -> Rule:
        """The one given."""
        return self.rule

    def after_step(self, step: int) -> None:
        """Pushes and fetches when it is time."""
        self.open()
        if not self.job.has_overflow:
            add(self._sum, self._part.gradients())
        pushes, fetches = step % self.push_every == 0, step % self.fetch_every == 0
        if pushes and fetches:
            self._part.write(self.push_pull(self._sum))
        elif pushes:
            self.push(self._sum)
        elif fetches:
            self._part.write(self.pull())
        if pushes:
            self._forget()

    def settle(self) -> None:
        """Pushes what there is, so that no gradient is lost in `finish()`."""
        self.open()
        if any(bool(flat.any()) for flat in self._sum):
            self.push(self._sum)
            self._forget()
        super().settle()

    def finished(self) -> None:
        """Gradients of steps that an error has undone do not count."""
        super().finished()
        self._forget()

    def bytes(self) -> int:
        """Also the sum."""
        return super().bytes() + sum(flat.nbytes for flat in self._sum)

    def _forget(self) -> None:
        for flat in self._sum:
            flat.zero_()
