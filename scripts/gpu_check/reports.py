"""What came of a step, in a few words, from what it has printed or written."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from .steps import FAILED, MET, MISSED, NOT_MEASURED, PASSED, Reading

# Of bench_convert's table: G1 is the slowest of them.
JUDGED_CONVERSIONS = ("pack", "pack, × 1/8", "pack to float16, × 1/8")
# Best first; a row of several figures is its worst one.
_VERDICTS = (MET, "undecided", MISSED, NOT_MEASURED)


def count_tests(report: Path) -> Reading:
    """CTest's, GoogleTest's or pytest's results. Where all were skipped, nothing was tested."""
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    failed = sum(
        case.find("failure") is not None or case.find("error") is not None for case in cases
    )
    reasons = [_reason_of(skip) for case in cases for skip in case.iter("skipped")]
    passed = len(cases) - failed - len(reasons)
    words = f"{passed} passed, {failed} failed, {len(reasons)} skipped"
    if failed:
        return Reading(words, FAILED)
    if passed:
        return Reading(words)
    return Reading(f"{words}: {reasons[0] if reasons else 'there was none'}", NOT_MEASURED)


def _reason_of(skip: ElementTree.Element) -> str:
    """GoogleTest puts where it was in front, in a line of its own."""
    told = (skip.get("message") or skip.text or "no reason was given").strip()
    return told.splitlines()[-1]


def read_verdicts(path: Path) -> Reading:
    """What `python -m benchmarks --gpu` has written, a few words for each figure."""
    verdicts = json.loads(path.read_text(encoding="utf-8"))["verdicts"]
    words = []
    for verdict in verdicts:
        value, interval = verdict["measured"], verdict["interval"]
        figure = "-" if value is None else f"{value:.4g} {verdict['unit']}".rstrip()
        figure += "" if interval is None else f" ({interval[0]:.2f} to {interval[1]:.2f})"
        reason = f" ({verdict['reason']})" if verdict["reason"] else ""
        words.append(f"{verdict['what']}: {figure}, {verdict['verdict']}{reason}")
    worst = max((verdict["verdict"] for verdict in verdicts), key=_VERDICTS.index)
    return Reading("; ".join(words), MISSED if worst == "undecided" else worst)


def read_packing(output: str) -> Reading:
    """Of bench_convert's table: how many times the driver's own copy rate is reached at least, and
    the launches of the 161 tensors, of which there should be one.

    Raises:
        ValueError: it has measured nothing.
    """
    ratios: dict[str, float] = {}
    launches = 0
    for name in JUDGED_CONVERSIONS:
        row = re.search(rf"^{re.escape(name)} {{2,}}(.*)$", output, re.MULTILINE)
        if row is None:
            raise ValueError(f"no row '{name}'")
        figures = row[1].split()
        ratios[name] = float(figures[2]) / float(figures[3])  # What it prints is rounded.
        launches = max(launches, int(figures[-1]))
    name, ratio = min(ratios.items(), key=lambda item: item[1])
    words = f"{ratio:.3f} of the copy rate ({name}), target 0.90; launches: {launches}, target 1"
    return Reading(words, MET if ratio >= 0.9 and launches == 1 else MISSED)


def read_sanitizer(output: str) -> Reading:
    """Of compute-sanitizer's output: how many processes it has checked, and what it has found."""
    counts = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: (\d+)", output)
    found = sum(int(count) for count in counts)
    if found > 0 or not counts:
        return Reading(f"{found} errors in {len(counts)} processes", FAILED)
    return Reading(f"no error in {len(counts)} processes", PASSED)
