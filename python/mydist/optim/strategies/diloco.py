"""DiLoCo: many local steps, and an outer optimizer that takes the mean change for a gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from .job import Average
from .strategy import Strategy, check_number, check_period, checked_outer

__all__ = ["DiLoCo"]

Outer = Callable[[list[torch.Tensor]], torch.optim.Optimizer]


@dataclass(eq=False)
class DiLoCo(Strategy):
    """Local steps; each round an outer optimizer steps on W − mean(x), and all ranks start from W.

    Sources: Douillard et al., "DiLoCo", arXiv:2311.08105; for fragments, delay and mix: Douillard
    et al., "Streaming DiLoCo with overlapping communication", arXiv:2501.18512. The state of the
    wrapped optimizer is never averaged. With a delay, buffers are averaged in `finish()` only.

    Memory: the anchor W and the state of the outer optimizer; by default two copies of the
    parameters. One more copy of a fragment while its mean is under way.

    Attributes:
        every: steps between two rounds of the same parameters.
        outer: makes a torch optimizer for a list of tensors; None is SGD with lr=0.7, momentum=0.9
            and nesterov.
        fragments: the parameters take turns in so many fragments; divides `every`.
        delay: a mean starts so many steps before it is used; below every / fragments.
        mix: how much of its own parameters a rank keeps at a round, from 0 to 1.
    """

    every: int = 500
    outer: Outer | None = None
    fragments: int = 1
    delay: int = 0
    mix: float = 0.0

    def __post_init__(self) -> None:
        """Raises ValueError for a wrong setting."""
        check_period("DiLoCo", "every", self.every)
        check_period("DiLoCo", "fragments", self.fragments)
        check_period("DiLoCo", "delay", self.delay, least=0)
        check_number("DiLoCo", "mix", self.mix, lambda mix: 0 <= mix <= 1, "from 0 to 1")
        outer: Any = self.outer
        if outer is not None and not callable(outer):
            expected = "a function that makes an optimizer for a list of tensors"
            raise ValueError(f"DiLoCo: outer is {outer!r}, expected {expected}")
        self._span, rest = divmod(self.every, self.fragments)
        if rest or self.delay >= self._span:
            expected = "expected fragments to divide every, and delay below every / fragments"
            raise ValueError(f"{self.describe()}: {expected}")
        self._outer: list[torch.optim.Optimizer] = []
        self._flight: tuple[int, Average] | None = None  # Of the fragment of this index.

    def begin(self, job: Any) -> None:
        """Makes the outer optimizers. Raises ValueError when there are too few parameters."""
        self.job = job
        self.parts = job.split(self.fragments)
        make = self.outer or partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
        self._anchors = [list(part.pieces(part.anchor)) for part in self.parts]
        self._outer = [checked_outer(make(anchors)) for anchors in self._anchors]

    def after_step(self, step: int) -> None:
        """Starts the mean of a fragment, or uses one, when it is time."""
        turn, rest = divmod(step + self.delay, self._span)
        if rest == 0:
            index = (turn - 1) % self.fragments
            change, label = self.parts[index].change(), f"fragment.{index}"
            self._flight = index, self.job.start_average(change, label, buffers=not self.delay)
        if step % self._span == 0:
            self.settle()

    def settle(self) -> None:
        """Uses the mean that is under way."""
        if self._flight is None:
            return
        (index, average), self._flight = self._flight, None
        part, outer = self.parts[index], self._outer[index]
        change = average.wait()
        for anchor, moved in zip(self._anchors[index], part.pieces(change), strict=True):
            anchor.grad = -moved
        outer.step()
        outer.zero_grad()
        own = zip(part.anchor, part.read(), strict=True)
        part.write([torch.lerp(anchor, local, self.mix) for anchor, local in own])

    def state_dict(self) -> dict[str, Any]:
        """The state of the outer optimizers, and the mean that is under way."""
        state: dict[str, Any] = {"outer": [outer.state_dict() for outer in self._outer]}
        if self._flight is not None:
            index, average = self._flight
            state["flight"] = index, [flat.clone() for flat in average.arrived()]
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes what `state_dict` gave."""
        for outer, saved in zip(self._outer, state["outer"], strict=True):
            outer.load_state_dict(saved)
        index, tensors = state.get("flight", (0, None))
        self._flight = None if tensors is None else (index, self.job.arrived_average(tensors))

    def bytes(self) -> int:
        """The anchors and the state of the outer optimizers."""
        states = [state.values() for outer in self._outer for state in outer.state.values()]
        return super().bytes() + sum(v.nbytes for s in states for v in s if torch.is_tensor(v))

    def describe(self) -> str:
        """The settings; the outer optimizer by the name of the function that makes it."""
        outer = None if self.outer is None else getattr(self.outer, "__qualname__", "custom")
        names = ("every", "fragments", "delay", "mix")
        settings = ", ".join(f"{name}={getattr(self, name)}" for name in names)
        return f"DiLoCo({settings}, outer={outer})"
