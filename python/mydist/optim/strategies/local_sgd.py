"""LocalSGD and PostLocalSGD: ranks step on their own and average their parameters now and then."""

from __future__ import annotations

from dataclasses import dataclass

from .strategy import Strategy, add, check_flag, check_period

__all__ = ["LocalSGD", "PostLocalSGD"]

_MOMENTA = ("keep", "reset", "average")


@dataclass(eq=False)
class LocalSGD(Strategy):
    """Local steps; every `every` of them the parameters become their mean over the ranks.

    Sources: McMahan et al., "Communication-Efficient Learning of Deep Networks from Decentralized
    Data", arXiv:1602.05629; Stich, "Local SGD Converges Fast and Communicates Little",
    arXiv:1805.09767. With `every=None` the parameters are averaged once, in `finish()`: Zinkevich
    et al., "Parallelized Stochastic Gradient Descent", NeurIPS 2010.

    Memory: one copy of the parameters, the anchor.

    Attributes:
        every: steps between rounds; None averages in `finish()` only. 1 averages gradients, as
            SynchronousGradients does, unless momentum or weights ask for more.
        momentum: of the wrapped optimizer, at each round: "keep" leaves it to each rank, "reset"
            makes it zero, "average" averages it as well, which adds to the bytes sent.
        weighted: weighs each rank by the samples since the last round; call
            `optimizer.count_samples(n)` before each step.
    """

    every: int | None = 8
    momentum: str = "keep"
    weighted: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a wrong setting."""
        owner = type(self).__name__
        if self.every is not None:
            check_period(owner, "every", self.every)
        check_flag(owner, "weighted", self.weighted)
        if self.momentum not in _MOMENTA:
            expected = ", ".join(repr(word) for word in _MOMENTA)
            raise ValueError(f"{owner}: momentum is {self.momentum!r}, expected one of {expected}")

    def before_step(self, step: int) -> bool:
        """Steps are local, unless a round would follow each of them."""
        return self.every != 1 or self.momentum != "keep" or self.weighted

    def after_step(self, step: int) -> None:
        """Averages the parameters when it is time."""
        if self.every is not None and step % self.every == 0:
            self._round()

    def finish(self) -> None:
        """The anchors become the mean of the ranks' parameters."""
        self._round("finish")

    def _round(self, label: str = "round") -> None:
        (part,) = self.parts
        change = part.change()
        momenta = []
        if self.momentum == "average":
            inner = self.job.inner_state()
            # A rank has none before its first gradient: its steps may have overflowed, say.
            momenta = inner.read(max(row[0] for row in self.job.gather([inner.kinds()])))
        self.job.average([*change, *momenta], label, by_samples=self.weighted)
        add(part.anchor, change)
        part.reset()
        if self.momentum == "average":
            self.job.inner_state().write(momenta)
        elif self.momentum == "reset":
            self.job.inner_state().reset()


@dataclass(eq=False)
class PostLocalSGD(LocalSGD):
    """SynchronousGradients for the first `start` steps, LocalSGD afterwards.

    Source: Lin et al., "Don't Use Large Mini-Batches, Use Local SGD", arXiv:1808.07217, which
    starts at the first drop of the learning rate.

    Memory: one copy of the parameters, made at the first local step.

    Attributes:
        every: steps between rounds once steps are local.
        start: how many steps average their gradients first.
    """

    every: int | None = 8
    start: int = 1000

    def __init__(self, every: int, start: int) -> None:
        """Raises ValueError for a wrong setting."""
        check_period("PostLocalSGD", "every", every)
        super().__init__(every)
        self.start = check_period("PostLocalSGD", "start", start, least=0)

    def before_step(self, step: int) -> bool:
        """Local from step `start` on."""
        return step >= self.start
