"""Results: everything that one run of the benchmarks measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mydist.bench.results import Row


@dataclass
class Results:
    """Rows and single figures, each under the name of the suite that measured it.

    A suite that could not run has a reason instead, and a peer that could not has one, too.
    """

    rows: dict[str, list[Row]] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)

    def row(self, suite: str, impl: str, size_bytes: int | None = None) -> Row | None:
        """The first row of an implementation whose name starts so, at that size or any."""
        for row in self.rows.get(suite, []):
            if row.impl.startswith(impl) and size_bytes in (None, row.size_bytes):
                return row
        return None

    def figure(self, suite: str, name: str) -> float | None:
        """A single figure, if it was measured."""
        return self.figures.get(suite, {}).get(name)


def format_figures(figures: Mapping[str, float]) -> str:
    """One line each; medians of times have their minimum and 99th percentile beside them."""
    width = max(map(len, figures), default=0)
    lines = []
    for name, value in figures.items():
        stem = name.removesuffix("_us")
        least, most = figures.get(f"{stem}_min_us"), figures.get(f"{stem}_p99_us")
        if stem.endswith(("_min", "_p99")) and f"{stem[:-4]}_us" in figures:
            continue
        beside = "" if least is None or most is None else f" (min {least:.2f}, p99 {most:.2f})"
        lines.append(f"  {name:<{width}} {value:.2f}{beside}")
    return "\n".join(lines)
