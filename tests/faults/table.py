"""The tables of docs/reliability.md: a row for each fault, a column for each plane. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from faults.catalogue import FAULTS, PLANES, WAIT_S, Act
from faults.cells import Cell, format_bound, format_ends, format_reports, format_times
from faults.matrix import ACTS, Place, bound_of
from faults.peers import PEER_FAULTS, PeerCell, format_peer

NAMES = "median / 99th percentile / maximum"


@dataclass
class Findings:
    """All that was measured; empty: not measured."""

    cells: list[Cell] = field(default_factory=list)
    matrix: list[Cell] = field(default_factory=list)  # Each of one run, named by its place.
    seed: int = 0
    peers: list[PeerCell] = field(default_factory=list)

    def to_document(self, machine: str, commit: str) -> dict[str, Any]:
        """What the JSON file holds; the reverse is `from_document`."""
        return {"machine": machine, "commit": commit, **asdict(self)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Findings:
        """The reverse of `to_document`."""
        return cls(
            [Cell(**cell) for cell in document["cells"]],
            [Cell(**cell) for cell in document["matrix"]],
            document["seed"],
            [PeerCell(**cell) for cell in document["peers"]],
        )


def format_markdown(document: Mapping[str, Any]) -> str:
    """All tables, with machine and commit above."""
    found = Findings.from_document(document)
    lines = [f"{document['machine']}; mydist at commit {document['commit']}."]
    if found.cells:
        lines += _named(found.cells)
    if found.matrix:
        lines += ["", *_matrix(found.matrix, found.seed)]
    if found.peers:
        lines += ["", *_peers(found.peers)]
    return "\n".join(lines)


def _named(cells: Sequence[Cell]) -> list[str]:
    runs = sorted({cell.runs for cell in cells})
    counts = str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    return [
        f"Runs of each cell: {counts}.",
        "",
        f"Time to report, {NAMES}:",
        "",
        *_table(cells, _title_with_wait, format_reports, has_bound=True),
        "",
        f"Time from the fault to the end of `mydistrun`, {NAMES}:",
        "",
        *_table([c for c in cells if c.ends_s], lambda key: _TITLES[key], format_ends),
    ]


_TITLES = {fault.key: fault.title for fault in FAULTS}
_BOUNDS = {fault.key: fault.goal_s for fault in FAULTS}
_WITH_WAIT = {fault.key for fault in FAULTS if fault.after_s > 0}


def _title_with_wait(key: str) -> str:
    return f"{_TITLES[key]}, later than {WAIT_S:g} s" if key in _WITH_WAIT else _TITLES[key]


def _table(
    cells: Sequence[Cell],
    title: Callable[[str], str],
    text: Callable[[Cell], str],
    has_bound: bool = False,
) -> list[str]:
    found = {(cell.fault, cell.plane): text(cell) for cell in cells}
    rows = [fault.key for fault in FAULTS if any(key == fault.key for key, _ in found)]
    planes = [plane for plane in PLANES if any(key == plane.key for _, key in found)]
    lines = _head(("fault", *(["bound"] if has_bound else []), *(p.title for p in planes)))
    for key in rows:
        bound = [format_bound(_BOUNDS[key])] if has_bound else []
        lines.append(
            _row((title(key), *bound, *(found.get((key, plane.key), "-") for plane in planes)))
        )
    return lines


def _matrix(cells: Sequence[Cell], seed: int) -> list[str]:
    held = sum(not cell.problems for cell in cells)
    planes = [plane for plane in PLANES if any(cell.plane == plane.key for cell in cells)]
    lines = [
        f"The matrix, seed {seed}: {len(cells)} cells run, {held} held. Cells that held, of those "
        f"that were run; then the time to report, {NAMES}:",
        "",
        *_head(("fault", "bound", *(plane.title for plane in planes))),
    ]
    for act in ACTS:
        of_act = [cell for cell in cells if Place.of(cell.fault).act is act]
        if of_act:
            bound = "no report" if act is Act.DELAY else format_bound(bound_of(act))
            texts = (_class_text(of_act, plane.key) for plane in planes)
            lines.append(_row((_act_title(act), bound, *texts)))
    return lines


def _act_title(act: Act) -> str:
    titles = {Act.RAISE: "exception", Act.LEAVE: "early end", Act.DELAY: "a short delay"}
    title = titles.get(act, act.value)
    return f"{title}, later than {WAIT_S:g} s" if act is Act.STOP else title


def _class_text(cells: Iterable[Cell], plane: str) -> str:
    here = [cell for cell in cells if cell.plane == plane]
    if not here:
        return "-"
    held = sum(not cell.problems for cell in here)
    times = [value for cell in here for value in cell.reports_s]
    is_late = any(cell.is_late for cell in here)
    text = format_times(times)
    figures = "" if not times else f"; **{text}**" if is_late else f"; {text}"
    expected = sum(cell.expected for cell in here)
    missing = f"; {expected - len(times)} of {expected} missing" if expected > len(times) else ""
    return f"{held} of {len(here)}{figures}{missing}"


def _peers(cells: Sequence[PeerCell]) -> list[str]:
    libraries = list(dict.fromkeys(cell.library for cell in cells))
    lines = [
        "The same faults of rank 3 of 4 in other libraries, on the same machine. Time until a "
        f"survivor learns, {NAMES}; and whether its error names rank 3:",
        "",
        *_head(("fault", *libraries)),
    ]
    found = {(cell.fault, cell.library): format_peer(cell) for cell in cells}
    for key, title in PEER_FAULTS.items():
        texts = [found.get((key, library), "-") for library in libraries]
        lines.append(_row((title, *texts)))
    return lines


def _head(titles: Sequence[str]) -> list[str]:
    return [_row(titles), "|---" * len(titles) + "|"]


def _row(texts: Sequence[str]) -> str:
    return "| " + " | ".join(texts) + " |"
