"""python -m faults: measures how long survivors take to report each fault on each plane.

Writes everything to build/faults/faults.json and prints the tables of docs/reliability.md;
`--markdown` prints those of the last run again. The exit code is 1 when a message was wrong or
something was left behind, not when a report was late. The machine should be idle.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from multiproc.backends import missing_backends
from multiproc.job import TESTS

from benchmarks.machine import commit, describe_machine
from faults.catalogue import FAULTS, PLANES, Act, Fault, Plane
from faults.cells import Cell
from faults.checks import problems_of, time_to_end, times_to_report
from faults.run import run_once
from faults.table import format_markdown, to_document

JSON = TESTS.parent / "build/faults/faults.json"
# All faults on all planes take about ten minutes then on two idle cores: a job, about five seconds.
REPEATS = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.markdown:
        print(format_markdown(json.loads(options.json.read_text(encoding="utf-8"))))
        return 0
    faults = [fault for fault in FAULTS if _is_chosen(fault.key, options.only)]
    planes = [plane for plane in PLANES if _is_chosen(plane.key, options.planes)]
    missing = missing_backends()
    for plane in planes:
        if plane.backend in missing:
            print(f"{plane.title}: not measured, {missing[plane.backend]}", file=sys.stderr)
    planes = [plane for plane in planes if plane.backend not in missing]
    cells = measure(faults, planes, options.repeats)
    document = to_document(cells, describe_machine(), commit())
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(format_markdown(document))
    print(f"\nall figures: {options.json}")
    wrong = [cell for cell in cells if cell.problems]
    for cell in wrong:
        print(f"WRONG: {cell.fault} on {cell.plane}: {len(cell.problems)}", file=sys.stderr)
    return 1 if wrong or not cells else 0


def measure(faults: Sequence[Fault], planes: Sequence[Plane], repeats: int) -> list[Cell]:
    """The cells, fault by fault. Runs of a cell are far apart, so that a disturbance hits few."""
    cells = {
        (fault.key, plane.key): Cell(fault.key, plane.key, fault.goal_s)
        for fault in faults
        for plane in planes
    }
    try:
        for number in range(repeats):
            for fault in faults:
                for plane in planes:
                    _add_run(cells[fault.key, plane.key], fault, plane, number)
    except KeyboardInterrupt:
        print("interrupted: the tables have what was measured so far", file=sys.stderr)
    return [cell for cell in cells.values() if cell.runs]


def _add_run(cell: Cell, fault: Fault, plane: Plane, number: int) -> None:
    started = time.monotonic()
    times: list[float] = []
    with tempfile.TemporaryDirectory(prefix="mydist-fault-") as folder:
        try:
            run = run_once(fault, plane, Path(folder))
        except AssertionError as error:  # A rank did not come so far.
            problems = [f"the job did not come to the fault: {error}"]
        else:
            problems = problems_of(fault, plane, run)
            times = times_to_report(fault, run)
            # Where mydistrun is the victim, its end is the fault.
            if fault.act not in (Act.WITHHOLD, Act.KILL_LAUNCHER):
                cell.ends_s.append(time_to_end(run))
    cell.runs += 1
    cell.expected += len(fault.survivors) or 1
    cell.reports_s += times
    cell.problems += [f"run {number}: {problem}" for problem in problems]
    spent = time.monotonic() - started
    figures = " ".join(f"{value:.3f}" for value in times)
    text = f"{fault.key}, {plane.key}: {figures} s by rank, job of {spent:.1f} s"
    print("\n    ".join((text, *problems)), file=sys.stderr, flush=True)


def _is_chosen(key: str, words: Sequence[str]) -> bool:
    return not words or any(word in key for word in words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m faults", description=__doc__)

    def words(text: str) -> list[str]:
        return text.split(",")

    keys = ", ".join(fault.key for fault in FAULTS)
    parser.add_argument(
        "--only", type=words, default=[], help=f"faults whose names contain one of these: {keys}"
    )
    keys = ", ".join(plane.key for plane in PLANES)
    parser.add_argument("--planes", type=words, default=[], help=f"as for faults: {keys}")
    parser.add_argument("--repeats", type=int, default=REPEATS, help=f"runs of a cell [{REPEATS}]")
    parser.add_argument("--json", type=Path, default=JSON, help="[build/faults/faults.json]")
    parser.add_argument(
        "--markdown", action="store_true", help="measure nothing, print the JSON file as tables"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
