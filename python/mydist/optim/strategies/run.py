"""StrategyRun: an optimizer's strategy at work: it counts steps, begins, finishes, and is saved."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections.abc import Iterator, Mapping
from copy import copy
from typing import Any

import torch

from ...collectives.waits import join_count, when_joining
from ...job.error_text import check_state
from .job import StrategyJob
from .strategy import Strategy
from .synchronous import SynchronousGradients

# Those that mydist.explain() tells about.
live_runs: weakref.WeakSet[StrategyRun] = weakref.WeakSet()


def _leave() -> None:
    for run in list(live_runs):
        if run.has_begun:
            run.strategy.leave()


when_joining(_leave)


def warn_of_another(saver: str, loader: str, stacklevel: int) -> None:
    """Says that the state of one strategy, or several, is of no use to others."""
    warnings.warn(
        f"the optimizer's state was saved by {saver} and is loaded into {loader}, which cannot "
        f"use its anchors and momenta. {loader} starts from the present parameters",
        stacklevel=stacklevel,
    )


class StrategyRun:
    """One strategy on one job. All calls come from the thread that trains.

    Attributes:
        strategy: a copy of the one given.
        pattern: of the names of its parameters, where the optimizer has other strategies, too.
        is_local: whether the next step stays local.
        steps: taken by the optimizer on this rank; equal on all ranks after `finish`.
        has_begun: whether anchors exist, that is after the first local step.
        is_foreign: whether another strategy has saved the state that was loaded last.
    """

    def __init__(self, strategy: Strategy, job: StrategyJob, pattern: str = "") -> None:
        self._given = strategy
        self.strategy = copy(strategy)
        self.pattern = pattern
        self.job = job
        self.steps = 0
        self.has_begun = self.is_foreign = False
        self.is_local = strategy.before_step(0)
        self._becomes_local = strategy.before_step(sys.maxsize)
        self._local_steps = 0  # Since the strategy began or finished.
        self._reduced_steps = 0  # Those whose gradients were reduced.
        self._rounds_before = 0  # The last finish.
        self._has_samples = False  # For the next step.
        self._joins = join_count()
        if pattern or not isinstance(strategy, SynchronousGradients):
            live_runs.add(self)

    def before_step(self) -> None:
        """Takes the anchors before the first local step.

        Raises:
            ValueError: join() has ended and finish() was not called, or samples were not counted.
        """
        if self.steps == 0:
            self._joins = join_count()  # Of earlier training.
        if self._joins != join_count() and self._becomes_local:
            raise ValueError(
                f"step() follows join(): the ranks have made different numbers of steps and "
                f"{self._name} cannot tell which model counts. Call optimizer.finish() after join()"
            )
        if not self.is_local:
            return
        if not self.has_begun:
            self._begin()
        if getattr(self.strategy, "weighted", False) and not self._has_samples:
            raise ValueError(
                f"{self._name}(weighted=True): step() was called without count_samples(); call "
                "optimizer.count_samples(n) with the number of samples of this step before it"
            )

    def count_samples(self, count: int) -> None:
        """This rank has seen so many more samples."""
        self.job.samples += count
        self._has_samples = True

    def count_step(self) -> None:
        """A step has changed the parameters."""
        self.steps += 1
        self._has_samples = False
        if self.is_local:
            self._local_steps += 1
        else:
            self._reduced_steps += 1

    def after_step(self) -> None:
        """Called when a step has been counted; a round happens here."""
        if self.is_local:
            self.strategy.after_step(self._local_steps)
        self.is_local = self.strategy.before_step(self.steps)

    def undo(self) -> None:
        """Puts the parameters back to the anchors, after a round that failed."""
        self.job.is_behind = False
        self.job.restore()
        if self.has_begun:
            self.strategy.finished()

    def finish(self) -> None:
        """Gives every rank the model to evaluate. Collective; see DistributedOptimizer.finish."""
        if self.has_begun:
            self.strategy.settle()
        # How often this rank has met the others since the last finish.
        met = self._reduced_steps + self.job.rounds - self._rounds_before
        rows = self.job.gather([met, self._local_steps, self.steps, int(self.has_begun)])
        newest = max(row[0] for row in rows)
        if any(row[3] for row in rows) and not self.has_begun:
            self._begin()
        self.job.is_behind = met < newest
        if any(row[0] < newest for row in rows):
            self._catch_up([row[0] for row in rows].index(newest))
        if self.has_begun:
            if any(row[1] for row in rows if row[0] == newest):
                self.strategy.finish()
            self.job.restore()
            self.strategy.finished()
        elif self.job.buffers.tensors:
            self.job.average([], "finish")
        self.job.is_behind = False
        self.steps = max(row[2] for row in rows)
        self._local_steps = self._reduced_steps = 0
        self._rounds_before = self.job.rounds
        self._joins = join_count()
        self.is_local = self.strategy.before_step(self.steps)

    def state_dict(self) -> dict[str, Any]:
        """Counts, anchors and momenta; all but the counts are equal on all ranks."""
        return {
            "strategy": self.strategy.describe(),
            **self.counts(),
            "parts": [part.state_dict() for part in self.job.parts] if self.has_begun else None,
            "own": self.strategy.state_dict() if self.has_begun else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave. Parameters stay as they are.

        Warns and begins anew if another strategy has saved the state. Raises ValueError if the
        parameters have other shapes.
        """
        check_state(self._name, state, ["strategy", "parts", "own"])
        self.load_counts(state)
        self.is_foreign = False
        if state["parts"] is None:
            self.begin_anew()
            return
        if state["strategy"].partition("(")[0] != self._name:
            self.begin_after_another()
            warn_of_another(state["strategy"], self.strategy.describe(), stacklevel=5)
            return
        if not self.has_begun:
            self._begin()
        if len(state["parts"]) != len(self.job.parts):
            raise ValueError(
                f"load_state_dict: the state was saved by {state['strategy']}, in "
                f"{len(state['parts'])} fragments, but {self.strategy.describe()} has "
                f"{len(self.job.parts)}; use the same number of fragments"
            )
        for part, saved in zip(self.job.parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        self.strategy.load_state_dict(state["own"])

    def counts(self) -> dict[str, int]:
        """What this rank has counted."""
        return {
            "steps": self.steps,
            "local_steps": self._local_steps,
            "rounds": self.job.rounds,
            "samples": self.job.samples,
        }

    def load_counts(self, counts: Mapping[str, Any]) -> None:
        """Takes what `counts` gave."""
        check_state(self._name, counts, self.counts())
        self.steps, self._local_steps = counts["steps"], counts["local_steps"]
        self.job.rounds = self._rounds_before = counts["rounds"]
        self.job.samples = counts["samples"]
        self._reduced_steps = 0
        self.is_local = self.strategy.before_step(self.steps)

    def begin_anew(self) -> None:
        """Forgets anchors and momenta; the next local step takes new anchors."""
        self.strategy = copy(self._given)
        self.job.parts = []
        self.has_begun = False
        self._local_steps = self.job.samples = 0

    def begin_after_another(self) -> None:
        """The same, since another strategy has saved the state."""
        self.is_foreign = True
        self.begin_anew()

    def drop_local_steps(self) -> None:
        """Forgets the steps since the last round: parameters become the anchors."""
        if self.has_begun:
            self.job.restore()
            self.strategy.finished()
        self._local_steps = self.job.samples = 0

    def anchors(self) -> Iterator[torch.Tensor]:
        """In the shapes and the order of the optimizer's parameters."""
        for part in self.job.parts:
            yield from part.pieces(part.anchor)

    def choice(self) -> str:
        """The strategy, for mydist.explain()."""
        text = self.strategy.describe()
        return f"{self.pattern!r}: {text}" if self.pattern else text

    def reason(self) -> str:
        """How far it is, for mydist.explain()."""
        if not self.has_begun:
            return f"gradients are reduced; {self.steps} steps so far"
        return (
            f"so far {self.steps} steps, rounds: {self.job.rounds}; anchors and momenta take "
            f"{self.strategy.bytes()} bytes{self.strategy.places()}"
        )

    @property
    def _name(self) -> str:
        return type(self.strategy).__name__

    def _begin(self) -> None:
        self.strategy.begin(self.job)
        self.has_begun = True

    def _catch_up(self, root: int) -> None:
        """Ranks that lack rounds or steps get what the rank `root` has."""
        # Averages of the others count in the mean; counters are those of one rank anyway.
        averages = [b if self.job.is_behind else b.clone() for b in self.job.buffers.averages]
        self.job.broadcast([*self.job.shared(), *averages, *self.job.buffers.counters], root)
        if not self.has_begun:
            self.job.copy_training(root)
            return
        own = self.job.broadcast_object(self.strategy.state_dict(), root)
        if self.job.is_behind:
            self.strategy.load_state_dict(own)
            self.job.restore()
