"""Cells of the table: what the runs of one fault on one plane came to. Pure."""

from __future__ import annotations

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


def format_times(seconds: Sequence[float]) -> str:
    """Median and maximum, both in the unit of the maximum."""
    if not seconds:
        return "-"
    both = (statistics.median(seconds), max(seconds))
    if both[1] >= 1:
        return " / ".join(f"{value:.2f}" for value in both) + " s"
    return " / ".join(_milliseconds(value * 1000) for value in both) + " ms"


def _milliseconds(value: float) -> str:
    return f"{value:.1f}" if abs(value) < 10 else f"{value:.0f}"


def format_reports(cell: Cell) -> str:
    """What the table says of the reports: a goal that is missed and reports that are missing."""
    text = format_times(cell.reports_s)
    if cell.is_late:
        text = f"**{text}**"
    missing = cell.expected - len(cell.reports_s)
    return f"{text}, {missing} of {cell.expected} missing" if missing else text


def format_ends(cell: Cell) -> str:
    """What the table says of the ends of the jobs."""
    return format_times(cell.ends_s)
