"""python -m faults: measures how long survivors take to report each fault on each plane.

There are three parts: `table`, the named faults; `matrix`, a sample of all faults at all places in
all collectives, which a seed draws; `peers`, a few of these faults in other libraries. Writes
everything to build/faults/faults.json and prints the tables of docs/reliability.md; `--markdown`
prints those of the last run again. The exit code is 1 when a message was wrong or something was
left behind, not when a report was late. The machine should be idle.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill

from multiproc.backends import missing_backends
from multiproc.job import TESTS

from benchmarks.machine import commit, describe_machine
from faults.catalogue import FAULTS, PLANES, Act, Fault, Plane
from faults.cells import Cell
from faults.checks import problems_of, time_to_end, times_to_report
from faults.matrix import Place, draw, every_place
from faults.peers import PEER_FAULTS, PeerCell, peers_at_hand, run_peer
from faults.run import run_once
from faults.table import Findings, format_markdown

JSON = TESTS.parent / "build/faults/faults.json"
# All faults on all planes take about 20 minutes then on two idle cores: a job, about five seconds.
REPEATS = 2
PAGE, HEADING = TESTS.parent / "docs/reliability.md", "\n## Figures\n\n"
PARTS = ("table", "matrix", "peers")


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.markdown or options.docs:
        text = format_markdown(json.loads(options.json.read_text(encoding="utf-8")))
        if options.docs:
            page, heading, _ = PAGE.read_text(encoding="utf-8").partition(HEADING)
            lines = [line if line[:1] == "|" else fill(line, 100) for line in text.split("\n")]
            PAGE.write_text(f"{page}{heading}" + "\n".join(lines) + "\n", encoding="utf-8")
        else:
            print(text)
        return 0
    print(f"seed {options.seed}", file=sys.stderr)
    found = Findings(seed=options.seed)
    try:
        _measure(options, found)
    except KeyboardInterrupt:
        print("interrupted: the tables have what was measured so far", file=sys.stderr)
    found.cells = [cell for cell in found.cells if cell.runs]
    document = found.to_document(describe_machine(), commit())
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(format_markdown(document))
    print(f"\nall figures: {options.json}")
    for cell in found.cells:
        if cell.problems:
            again = f"--parts table --only {cell.fault} --planes {cell.plane}"
            _tell_wrong(cell, again)
    for cell in found.matrix:
        if cell.problems:
            _tell_wrong(cell, f"--seed {found.seed} --cell {cell.fault}")
    cells = (*found.cells, *found.matrix)
    return 1 if any(cell.problems for cell in cells) or not (cells or found.peers) else 0


def _tell_wrong(cell: Cell, again: str) -> None:
    print(f"WRONG: {cell.fault} on {cell.plane}: {len(cell.problems)}", file=sys.stderr)
    print(f'  again: make faults FAULTS_ARGS="{again}"', file=sys.stderr)


def _measure(options: argparse.Namespace, found: Findings) -> None:
    planes = _planes_at_hand(options.planes)
    if options.cell:
        places = [Place.of(name) for name in options.cell]
        return measure_matrix(places, options.seed, found.matrix)
    if "table" in options.parts:
        faults = [fault for fault in FAULTS if _is_chosen(fault.key, options.only)]
        measure_table(faults, planes, options.repeats, found.cells)
    if "matrix" in options.parts:
        places = every_place(planes) if options.all else draw(options.seed, options.draw, planes)
        places = [place for place in places if _is_chosen(place.name, options.only)]
        measure_matrix(places, options.seed, found.matrix)
    if "peers" in options.parts:
        _measure_peers(options, found.peers)


def measure_table(
    faults: Sequence[Fault], planes: Sequence[Plane], repeats: int, cells: list[Cell]
) -> None:
    """Adds the cells, fault by fault. Runs of a cell are far apart: a disturbance hits few."""
    own = {
        (fault.key, plane.key): Cell(fault.key, plane.key, fault.goal_s)
        for fault in faults
        for plane in planes
    }
    cells += own.values()
    for number in range(repeats):
        for fault in faults:
            for plane in planes:
                _add_run(own[fault.key, plane.key], fault, plane, number)


def measure_matrix(places: Iterable[Place], seed: int, cells: list[Cell]) -> None:
    """Adds a cell of one run for each place."""
    for place in places:
        fault = place.fault(seed)
        cells.append(Cell(fault.key, place.plane.key, fault.goal_s))
        _add_run(cells[-1], fault, place.plane, 0)


def _measure_peers(options: argparse.Namespace, cells: list[PeerCell]) -> None:
    for peer in peers_at_hand(options.horovod):
        for fault in PEER_FAULTS:
            if not _is_chosen(fault, options.only):
                continue
            cells.append(PeerCell(peer.title, fault))
            for _ in range(options.repeats):
                with tempfile.TemporaryDirectory(prefix="mydist-fault-") as folder:
                    run_peer(peer, fault, Path(folder), cells[-1])
            print(f"{cells[-1]}", file=sys.stderr, flush=True)


def _planes_at_hand(words: Sequence[str]) -> list[Plane]:
    planes = [plane for plane in PLANES if _is_chosen(plane.key, words)]
    missing = missing_backends()
    for plane in planes:
        if plane.backend in missing:
            print(f"{plane.title}: not measured, {missing[plane.backend]}", file=sys.stderr)
    return [plane for plane in planes if plane.backend not in missing]


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
            if fault.act not in (Act.WITHHOLD, Act.KILL_LAUNCHER, Act.DELAY):
                cell.ends_s.append(time_to_end(run))
    cell.runs += 1
    cell.expected += len(times) if fault.may_stay_silent else fault.report_count
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

    def parts(text: str) -> list[str]:
        if set(words(text)) - set(PARTS):
            raise argparse.ArgumentTypeError(f"got {text!r}, expected some of {', '.join(PARTS)}")
        return words(text)

    keys = ", ".join(fault.key for fault in FAULTS)
    add = parser.add_argument
    add("--only", type=words, default=[], help=f"faults whose names contain one of these: {keys}")
    keys = ", ".join(plane.key for plane in PLANES)
    add("--planes", type=words, default=[], help=f"as for faults: {keys}")
    add("--parts", type=parts, default=PARTS, help=f"what to measure: {','.join(PARTS)} [all]")
    add("--repeats", type=int, default=REPEATS, help=f"runs of a cell of the table [{REPEATS}]")
    add("--seed", type=int, default=random.randrange(1 << 31), help="of the matrix [any]")
    add("--draw", type=int, default=2, help="cells of the matrix for each fault and plane [2]")
    add("--all", action="store_true", help="all cells of the matrix: about two hours")
    add("--cell", action="append", help="only this cell of the matrix: ACT/PLACE/COLLECTIVE/PLANE")
    add("--horovod", metavar="PYTHON", help="the Python that has Horovod [this one, if it has]")
    add("--json", type=Path, default=JSON, help="[build/faults/faults.json]")
    add("--markdown", action="store_true", help="measure nothing, print the JSON file as tables")
    add("--docs", action="store_true", help="the same into docs/reliability.md, below its heading")
    return parser


if __name__ == "__main__":
    sys.exit(main())
