"""Cells of the table: what the runs of one fault on one plane came to. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass
class Cell:
    """The figures of all runs, in seconds; `expected` is how many reports there should be."""

    fault: str
    plane: str
    goal_s: float
    expected: int = 0
    runs: int = 0
    reports_s: list[float] = field(default_factory=list)
    ends_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def is_late(self) -> bool:
        """Whether a report came later than it should."""
        return max(self.reports_s, default=0.0) > self.goal_s

    @property
    def missing(self) -> str:
        """How many reports did not come; empty: all of them did."""
        count = self.expected - len(self.reports_s)
        return f", {count} of {self.expected} missing" if count else ""


def percentile(seconds: Sequence[float], share: float) -> float:
    """The least value that is not below `share` of all: one of them, even of a few."""
    ordered = sorted(seconds)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def format_times(seconds: Sequence[float]) -> str:
    """Median, 99th percentile and maximum, all in the unit of the maximum."""
    if not seconds:
        return "-"
    figures = (statistics.median(seconds), percentile(seconds, 0.99), max(seconds))
    if figures[-1] >= 1:
        return " / ".join(f"{value:.2f}" for value in figures) + " s"
    return " / ".join(_milliseconds(value * 1000) for value in figures) + " ms"


def format_bound(seconds: float) -> str:
    """A goal, in a unit that needs no zeros."""
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1000:g} ms"


def _milliseconds(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 10 else f"{value:.0f}"


def format_reports(cell: Cell) -> str:
    """What the table says of the reports: a goal that is missed and reports that are missing."""
    text = format_times(cell.reports_s)
    return (f"**{text}**" if cell.is_late else text) + cell.missing


def format_ends(cell: Cell) -> str:
    """What the table says of the ends of the jobs."""
    return format_times(cell.ends_s)
