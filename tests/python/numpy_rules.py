"""The rule of each strategy once more, in float64 with numpy, as its paper writes it.

A model is one flat vector, and all ranks are the rows of an array. Each rank descends a problem of
its own, so ranks drift apart between rounds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

# A matrix and a vector; a parameter without dimensions is in the second group, whose rate is lower.
SHAPES = [(2, 3, 2, 1), (5,), ()]
CUTS = [0, 12, 17, 18]
GROUPS = [[0], [1, 2]]
ELEMENTS = CUTS[-1]
STEPS, RANKS = 13, 4

_random = np.random.default_rng(26)
START = _random.normal(size=ELEMENTS)
CURVATURE = _random.uniform(0.2, 2.0, size=(RANKS, ELEMENTS))
NOISE = _random.normal(size=(STEPS, RANKS, ELEMENTS))
SAMPLES = _random.integers(1, 9, size=(STEPS, RANKS))


def rates(step: int) -> list[float]:
    """The learning rate of each group of parameters; it falls."""
    return [0.1 * 0.9**step, 0.04 * 0.8**step]


def rate_of_each(step: int) -> Any:
    """The same by element."""
    first, second = rates(step)
    return np.where(np.arange(ELEMENTS) < CUTS[1], first, second)


class Rule:
    """Local steps of SGD with momentum; rounds and the end are left to the algorithm."""

    every = 3
    start = 0  # The first step that path() takes by step().

    def __init__(self, size: int, momentum: float = 0.0) -> None:
        self.size, self.momentum = size, momentum
        self.w = START.copy()  # The model that all agree on.
        self.x = np.tile(START, (size, 1))  # What each rank has.
        self.v = np.zeros_like(self.x)
        self.begin()

    def begin(self) -> None:
        """Makes what the algorithm keeps."""

    def step(self, step: int) -> None:
        gradient = CURVATURE[: self.size] * self.x + NOISE[step, : self.size]
        self.v = self.momentum * self.v + gradient
        self.x = self.x - rate_of_each(step) * self.v

    def move(self, w: Any) -> None:
        """All ranks go on from there."""
        self.w = w
        self.x = np.tile(w, (self.size, 1))

    def after(self, count: int, step: int) -> None:
        """What follows each step; `count` of them since the start or the last end."""
        if count % self.every == 0:
            self.round(step)

    def round(self, step: int) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        self.move(self.x.mean(axis=0))

    def path(self, finishes: Sequence[int]) -> Iterator[Any]:
        """All ranks' models after each step."""
        count = 0
        for step in range(self.start, STEPS):
            self.step(step)
            count += 1
            self.after(count, step)
            if step + 1 in finishes:
                self.finish()
                count = 0
            yield self.x.copy()


class Synchronous(Rule):
    def step(self, step: int) -> None:
        gradient = (CURVATURE[: self.size] * self.x + NOISE[step, : self.size]).mean(axis=0)
        self.v = self.momentum * self.v + gradient
        self.x = self.x - rate_of_each(step) * self.v

    def after(self, count: int, step: int) -> None:
        pass


class Averaged(Rule):
    """Local SGD: the mean of the parameters."""

    def round(self, step: int) -> None:
        self.move(self.x.mean(axis=0))


class AveragedOnce(Averaged):
    every = STEPS + 1


class MomentumReset(Averaged):
    def round(self, step: int) -> None:
        super().round(step)
        self.v[:] = 0

    def finish(self) -> None:
        self.round(0)


class MomentumAveraged(Averaged):
    def round(self, step: int) -> None:
        super().round(step)
        self.v[:] = self.v.mean(axis=0)

    def finish(self) -> None:
        self.round(0)


class Weighted(Rule):
    """Local SGD: each rank counts by its samples since the last round."""

    def begin(self) -> None:
        self.samples = np.zeros(self.size)

    def step(self, step: int) -> None:
        super().step(step)
        self.samples += SAMPLES[step, : self.size]

    def round(self, step: int) -> None:
        if self.samples.sum() > 0:
            self.move(self.samples @ self.x / self.samples.sum())
        self.samples[:] = 0

    def finish(self) -> None:
        self.round(0)


class PostLocal(Averaged):
    """Local SGD after four synchronous steps."""

    start = 4

    def path(self, finishes: Sequence[int]) -> Iterator[Any]:
        synchronous = Synchronous(self.size, self.momentum)
        for step in range(self.start):
            synchronous.step(step)
            yield synchronous.x.copy()
        self.x, self.v = synchronous.x.copy(), synchronous.v.copy()
        yield from super().path(finishes)


class Block(Rule):
    """Blockwise model-update filtering, with classical block momentum."""

    eta: float | None = None

    def begin(self) -> None:
        self.filter = 1 - 1 / self.size if self.eta is None else self.eta
        self.delta, self.s = np.zeros(ELEMENTS), START.copy()

    def round(self, step: int) -> None:
        self.delta = self.filter * self.delta + (self.x - self.s).mean(axis=0)
        self.move(self.w + self.delta)
        self.s = self.w.copy()

    def finish(self) -> None:
        self.move(self.w + (self.x - self.s).mean(axis=0))
        self.s = self.w.copy()


class BlockHalf(Block):
    eta = 0.5


class BlockNesterov(Block):
    def round(self, step: int) -> None:
        super().round(step)
        self.s = self.w + self.filter * self.delta
        self.x = np.tile(self.s, (self.size, 1))


class Slow(Rule):
    """SlowMo; the slow momentum is in units of gradients."""

    beta, alpha = 0.7, 1.0

    def begin(self) -> None:
        self.u = np.zeros(ELEMENTS)

    def round(self, step: int) -> None:
        rate, moved = rate_of_each(step), self.w - self.x.mean(axis=0)
        self.u = self.beta * self.u
        self.u[rate > 0] += moved[rate > 0] / rate[rate > 0]
        # At a rate of 0: what the rule tends to.
        self.move(self.w - self.alpha * np.where(rate > 0, rate * self.u, moved))


class SlowHalf(Slow):
    beta, alpha = 0.4, 0.5


class Outer(Rule):
    """DiLoCo: an outer Nesterov momentum on the mean change."""

    every, delay, mix = 4, 0, 0.0
    pieces = (slice(0, ELEMENTS),)
    outer = (0.7, 0.9, True)  # Learning rate, momentum, Nesterov.

    def begin(self) -> None:
        self.m, self.flight = np.zeros(ELEMENTS), None

    def after(self, count: int, step: int) -> None:
        span = self.every // len(self.pieces)
        turn, rest = divmod(count + self.delay, span)
        if rest == 0:
            piece = self.pieces[(turn - 1) % len(self.pieces)]
            self.flight = piece, (self.w - self.x.mean(axis=0))[piece]
        if count % span == 0:
            self.land()

    def land(self) -> None:
        if self.flight is None:
            return
        (piece, gradient), self.flight = self.flight, None
        lr, mu, nesterov = self.outer
        self.m[piece] = mu * self.m[piece] + gradient
        self.w[piece] -= lr * (gradient + mu * self.m[piece] if nesterov else self.m[piece])
        self.x[:, piece] = (1 - self.mix) * self.w[piece] + self.mix * self.x[:, piece]

    def finish(self) -> None:
        self.land()
        super().finish()


class OuterPlain(Outer):
    outer = (0.5, 0.4, False)


class OuterAdam(Outer):
    """With Adam outside: learning rate 0.05, the other settings as torch has them."""

    def begin(self) -> None:
        super().begin()
        self.v2, self.t = np.zeros(ELEMENTS), 0

    def land(self) -> None:
        if self.flight is None:
            return
        (_, gradient), self.flight = self.flight, None
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * gradient
        self.v2 = 0.999 * self.v2 + 0.001 * gradient**2
        root = np.sqrt(self.v2 / (1 - 0.999**self.t)) + 1e-8
        self.move(self.w - 0.05 * self.m / (1 - 0.9**self.t) / root)


class OuterFragments(Outer):
    pieces = (slice(0, CUTS[1]), slice(CUTS[1], ELEMENTS))


class OuterStreaming(OuterFragments):
    delay, mix = 1, 0.25


class OuterLate(Outer):
    delay = 3


class Elastic(Rule):
    """Elastic averaging: w is the centre; both sides move by what they were before."""

    beta = 0.9

    def round(self, step: int) -> None:
        apart = self.beta / self.size * (self.x - self.w)
        self.x = self.x - apart
        self.w = self.w + apart.sum(axis=0)

    def finish(self) -> None:
        self.move(self.w)


class ElasticHalf(Elastic):
    beta = 0.5
