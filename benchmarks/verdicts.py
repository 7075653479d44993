"""Verdicts: targets and measurements side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .results import Results
from .targets import Target

MET, MISSED, NOT_MEASURED = "met", "missed", "not measured"
# The target lies within what the figure may really be: the run cannot tell.
UNDECIDED = "undecided"


@dataclass(frozen=True)
class Verdict:
    """One line of the table.

    `reason` says why a figure was not measured; `interval` is what it may really be, if known.
    """

    row: str
    what: str
    relation: str
    target: float
    unit: str
    measured: float | None
    verdict: str
    reason: str = ""
    interval: Sequence[float] | None = None

    def cells(self) -> tuple[str, str, str, str, str]:
        """Row, what, target, measured, verdict."""
        sign = {"<=": "≤", ">=": "≥", "==": "="}[self.relation]
        measured = "-" if self.measured is None else _number(self.measured, self.unit)
        if self.interval is not None:
            low, high = self.interval
            measured += f" ({low:.2f} to {high:.2f})"
        return (
            self.row,
            self.what,
            f"{sign} {_number(self.target, self.unit)}",
            measured,
            (f"{self.verdict}: {self.reason}" if self.reason else self.verdict),
        )


def judge(targets: Sequence[Target], results: Results) -> list[Verdict]:
    """One verdict per target, in order."""
    return [_judge(target, results) for target in targets]


def _judge(target: Target, results: Results) -> Verdict:
    value = target.measured(results)
    verdict, reason = NOT_MEASURED, ""
    if value is None:
        reason = results.reasons.get(target.suite) or target.missing
    else:
        verdict = MET if target.is_met(value) else MISSED
    interval = target.interval(results)
    if interval is not None and target.is_met(interval[0]) != target.is_met(interval[1]):
        verdict = UNDECIDED
    facts = (target.row, target.what, target.relation, target.target, target.unit)
    return Verdict(*facts, value, verdict, reason, interval)


def _number(value: float, unit: str) -> str:
    if float(value).is_integer() and abs(value) < 1e9:
        text = str(int(value))
    else:
        text = f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
    return f"{text} {unit}".rstrip()


_HEADINGS = ("row", "what", "target", "measured", "verdict")


def format_table(verdicts: Sequence[Verdict]) -> str:
    """A Markdown table with aligned columns, and how many were met."""
    lines = [_HEADINGS, *(v.cells() for v in verdicts)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADINGS))]
    text = [
        f"| {' | '.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True))} |"
        for line in lines
    ]
    text.insert(1, "|---" * len(_HEADINGS) + "|")
    return "\n".join([*text, "", summary(verdicts)])


def summary(verdicts: Sequence[Verdict]) -> str:
    """How many there are of each verdict."""
    words = (MET, MISSED, UNDECIDED, NOT_MEASURED)
    counts = {word: sum(v.verdict == word for v in verdicts) for word in words}
    return ", ".join(
        f"{count} {word}" for word, count in counts.items() if count or word != UNDECIDED
    )


def not_measured(verdicts: Sequence[Verdict]) -> list[str]:
    """Row, subject and reason of each that has no figure."""
    return [f"{v.row} {v.what} ({v.reason})" for v in verdicts if v.verdict == NOT_MEASURED]
