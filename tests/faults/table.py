"""The tables of docs/reliability.md: a row for each fault, a column for each plane. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from faults.catalogue import FAULTS, PLANES, WAIT_S
from faults.cells import Cell, format_ends, format_reports

Document = Mapping[str, Any]


def to_document(cells: Sequence[Cell], machine: str, commit: str) -> dict[str, Any]:
    """What the JSON file holds; the reverse is `cells_of`."""
    return {"machine": machine, "commit": commit, "cells": [asdict(cell) for cell in cells]}


def cells_of(document: Document) -> list[Cell]:
    """The reverse of `to_document`."""
    return [Cell(**cell) for cell in document["cells"]]


def format_markdown(document: Document) -> str:
    """Both tables, with machine and commit above."""
    cells = cells_of(document)
    runs = sorted({cell.runs for cell in cells})
    counts = str(runs[0]) if len(runs) == 1 else f"{runs[0]} to {runs[-1]}"
    return "\n".join(
        [
            f"{document['machine']}; mydist at commit {document['commit']}.",
            f"Runs of each cell: {counts}.",
            "",
            "Time to report, median / maximum:",
            "",
            *_table(cells, _title_with_wait, format_reports),
            "",
            "Time from the fault to the end of `mydistrun`, median / maximum:",
            "",
            *_table([c for c in cells if c.ends_s], lambda key: _TITLES[key], format_ends),
        ]
    )


_TITLES = {fault.key: fault.title for fault in FAULTS}
_WITH_WAIT = {fault.key for fault in FAULTS if fault.after_s > 0}


def _title_with_wait(key: str) -> str:
    return f"{_TITLES[key]}, later than {WAIT_S:g} s" if key in _WITH_WAIT else _TITLES[key]


def _table(
    cells: Sequence[Cell], title: Callable[[str], str], text: Callable[[Cell], str]
) -> list[str]:
    found = {(cell.fault, cell.plane): text(cell) for cell in cells}
    rows = [fault.key for fault in FAULTS if any(key == fault.key for key, _ in found)]
    planes = [plane for plane in PLANES if any(key == plane.key for _, key in found)]
    lines = ["| " + " | ".join(("fault", *(plane.title for plane in planes))) + " |"]
    lines.append("|---" * (1 + len(planes)) + "|")
    for key in rows:
        texts = [found.get((key, plane.key), "-") for plane in planes]
        lines.append("| " + " | ".join((title(key), *texts)) + " |")
    return lines
