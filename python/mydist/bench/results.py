"""Results: what was measured, as rows, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Subject:
    """What was measured; as in Row."""

    op: str
    impl: str
    dtype: str
    ranks: int
    size_bytes: int


@dataclass(frozen=True)
class Row(Subject):
    """One implementation at one size; the names are those of the JSON file.

    Times are those of the slowest rank, in microseconds; sizes are of what a rank puts in, in
    bytes; bandwidths are at the median, in 10^9 bytes per second (see `bandwidths`). bound_us is
    T_rw: what reading and writing the bytes that a rank must touch took on the same cores in the
    same run; efficiency = bound_us ÷ p50_us. context_switches (voluntary or not) are per call
    and rank; cpu_seconds_per_gb are a rank's, all its threads together, per 10^9 bytes it puts in.
    None where a figure has no meaning.
    """

    iterations: int
    min_us: float
    p50_us: float
    p99_us: float
    algbw_gbs: float | None = None
    busbw_gbs: float | None = None
    bound_us: float | None = None
    efficiency: float | None = None
    context_switches: float | None = None
    cpu_seconds_per_gb: float | None = None

    @property
    def exposed_us(self) -> float | None:
        """Of a training step: what its communication adds to the computing, which is the bound."""
        is_step = self.op.startswith("step-")
        return self.p50_us - self.bound_us if is_step and self.bound_us is not None else None


@dataclass
class Measured:
    """What one implementation took at one size, over all rounds.

    times_us are those of the slowest rank, one per call; cpu_seconds and context_switches are
    means over the ranks, all calls together.
    """

    times_us: list[float] = field(default_factory=list)
    cpu_seconds: float = 0.0
    context_switches: float = 0.0

    def add(self, other: Measured) -> None:
        """Another round of the same."""
        self.times_us += other.times_us
        self.cpu_seconds += other.cpu_seconds
        self.context_switches += other.context_switches


def quantile(sorted_values: Sequence[float], fraction: float) -> float:
    """The value that `fraction` of all values do not exceed. `sorted_values` is not empty."""
    index = int(fraction * (len(sorted_values) - 1) + 0.5)
    return sorted_values[index]


def median(values: Sequence[float]) -> float:
    """The value in the middle. `values` is not empty."""
    return quantile(sorted(values), 0.5)


_MOVING = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")


def bandwidths(op: str, ranks: int, size_bytes: int, time_us: float) -> tuple[float, float] | None:
    """algbw and busbw in 10^9 bytes per second; None for a barrier or a training step.

    algbw = bytes of the whole operation ÷ time: what a rank puts in, for allgather what it gets.
    busbw = algbw × the share of it that every rank must send or receive at least, so that it can
    be compared with the hardware: 2(n-1)/n for allreduce, 1 for broadcast, (n-1)/n for the others.
    """
    if op not in _MOVING:
        return None
    algbw = size_bytes * (ranks if op == "allgather" else 1) / time_us / 1e3
    share = {"allreduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0}.get(op, (ranks - 1) / ranks)
    return algbw, algbw * share


def make_row(subject: Subject, measured: Measured, bound_us: float | None = None) -> Row:
    """The row of what was measured."""
    ordered = sorted(measured.times_us)
    middle, calls = quantile(ordered, 0.5), len(ordered)
    speeds = bandwidths(subject.op, subject.ranks, subject.size_bytes, middle)
    return Row(
        **asdict(subject),
        iterations=calls,
        min_us=ordered[0],
        p50_us=middle,
        p99_us=quantile(ordered, 0.99),
        algbw_gbs=speeds[0] if speeds else None,
        busbw_gbs=speeds[1] if speeds else None,
        bound_us=bound_us,
        efficiency=None if bound_us is None else bound_us / middle,
        context_switches=measured.context_switches / calls,
        cpu_seconds_per_gb=(
            measured.cpu_seconds / (calls * subject.size_bytes / 1e9) if speeds else None
        ),
    )


_COLUMNS = (
    # Heading, width, digits after the point, field.
    ("min us", 10, 2, "min_us"),
    ("p50 us", 10, 2, "p50_us"),
    ("p99 us", 10, 2, "p99_us"),
    ("exposed us", 10, 2, "exposed_us"),
    ("algbw GB/s", 10, 3, "algbw_gbs"),
    ("busbw GB/s", 10, 3, "busbw_gbs"),
    ("bound us", 10, 2, "bound_us"),
    ("eff.", 5, 2, "efficiency"),
    ("switches", 8, 2, "context_switches"),
    ("CPU s/GB", 9, 3, "cpu_seconds_per_gb"),
)


def format_table(rows: Sequence[Row]) -> str:
    """The rows as text, one line each under a heading, with the columns that have a figure."""
    columns = [
        column for column in _COLUMNS if any(getattr(row, column[3]) is not None for row in rows)
    ]
    heading = f"{'op':<13} {'size':>8} {'impl':<14} {'ranks':>5} {'iters':>6}"
    lines = [heading + "".join(f" {name:>{width}}" for name, width, _, _ in columns)]
    previous = None
    for row in rows:
        if previous not in (None, row.size_bytes):
            lines.append("")
        previous = row.size_bytes
        size = format_size(row.size_bytes) if row.size_bytes else "-"
        line = f"{row.op:<13} {size:>8} {row.impl:<14} {row.ranks:>5} {row.iterations:>6}"
        for _, width, digits, name in columns:
            value = getattr(row, name)
            line += " " + ("-" if value is None else f"{value:.{digits}f}").rjust(width)
        lines.append(line)
    return "\n".join(lines)


def write_json(rows: Sequence[Row], path: Path) -> None:
    """Writes a list of objects, one per row."""
    path.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> list[Row]:
    """The reverse of `write_json`."""
    return [Row(**row) for row in json.loads(path.read_text(encoding="utf-8"))]


_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text: str) -> int:
    """Bytes of "8", "64K", "4M" or "1G" (powers of 1024). ValueError for anything else."""
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    if not number.isdecimal() or int(number) == 0 or unit not in _UNITS:
        raise ValueError(f"size is '{text}', expected a positive number such as 8, 64K, 4M or 1G")
    return int(number) * _UNITS[unit]


def format_size(size_bytes: int) -> str:
    """The reverse of `parse_size`: "64K" for 65536."""
    for unit in ("G", "M", "K"):
        if size_bytes % _UNITS[unit] == 0:
            return f"{size_bytes // _UNITS[unit]}{unit}"
    return str(size_bytes)
