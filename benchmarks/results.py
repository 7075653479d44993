"""Results: everything that one run of the benchmarks measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from mydist.bench.results import Row, format_size


@dataclass(frozen=True)
class Cores:
    """How far the cores were from each other while a row of bench_allreduce was measured.

    line_ns: the median of what a cache line took from core to core. near_us and far_us: the row's
    median of the samples taken while that was below 100 ns, and of the others; None without any.
    """

    impl: str
    size_bytes: int
    line_ns: float
    near_samples: int
    far_samples: int
    near_us: float | None = None
    far_us: float | None = None


@dataclass
class Results:
    """Rows and single figures, each under the name of the suite that measured it.

    A suite that could not run has a reason instead, and a peer that could not has one, too.
    """

    rows: dict[str, list[Row]] = field(default_factory=dict)
    figures: dict[str, dict[str, float]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    cores: list[Cores] = field(default_factory=list)

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


def format_cores(cores: Sequence[Cores]) -> str:
    """A Markdown table: a line per size, medians in µs with cores near and far for each impl."""
    impls = list(dict.fromkeys(entry.impl for entry in cores))
    found = {(entry.size_bytes, entry.impl): entry for entry in cores}
    lines = ["| size | " + " | ".join(impls) + " |", "|---" * (len(impls) + 1) + "|"]
    for size in sorted({entry.size_bytes for entry in cores}):
        cells = (_near_and_far(found.get((size, impl))) for impl in impls)
        lines.append(f"| {format_size(size)}B | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _near_and_far(entry: Cores | None) -> str:
    if entry is None:
        return "-"
    times = (entry.near_us, entry.far_us)
    near, far = (
        "-" if time is None else f"{time:.4g}" if time < 1000 else f"{time:.0f}" for time in times
    )
    share = 100 * entry.near_samples / (entry.near_samples + entry.far_samples)
    return f"{near} / {far} ({share:.0f} %)"
