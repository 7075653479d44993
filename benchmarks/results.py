"""Results: everything that one run of the benchmarks measured."""

from __future__ import annotations

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
