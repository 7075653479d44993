"""Results: what was measured, as rows, as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Row:
    """One implementation at one size; the names are those of the JSON file.

    Times are those of the slowest rank, in microseconds; sizes are per rank, in bytes; bandwidths
    are at the median, in 10^9 bytes per second. algbw = size ÷ time. busbw = algbw × 2(n-1)/n for
    allreduce: what each rank must send and receive at least, so it can be compared with the
    hardware. bound_us and efficiency belong to a data plane that knows its bound; None here.
    """

    op: str
    impl: str
    dtype: str
    ranks: int
    size_bytes: int
    iterations: int
    min_us: float
    p50_us: float
    p99_us: float
    algbw_gbs: float | None
    busbw_gbs: float | None
    bound_us: float | None = None
    efficiency: float | None = None


def quantile(sorted_values: Sequence[float], fraction: float) -> float:
    """The value that `fraction` of all values do not exceed. `sorted_values` is not empty."""
    index = int(fraction * (len(sorted_values) - 1) + 0.5)
    return sorted_values[index]


def allreduce_row(
    impl: str, dtype: str, ranks: int, size_bytes: int, times_us: Sequence[float]
) -> Row:
    """The row of an allreduce from its times per iteration, in microseconds."""
    ordered = sorted(times_us)
    median = quantile(ordered, 0.5)
    algbw = size_bytes / median / 1e3
    return Row(
        op="allreduce",
        impl=impl,
        dtype=dtype,
        ranks=ranks,
        size_bytes=size_bytes,
        iterations=len(ordered),
        min_us=ordered[0],
        p50_us=median,
        p99_us=quantile(ordered, 0.99),
        algbw_gbs=algbw,
        busbw_gbs=algbw * 2 * (ranks - 1) / ranks,
    )


def format_table(rows: Sequence[Row]) -> str:
    """The rows as text, one line each under a heading."""
    lines = [
        f"{'op':<10} {'size':>10} {'impl':<14} {'ranks':>5} {'iters':>6} "
        f"{'min us':>11} {'p50 us':>11} {'p99 us':>11} {'algbw GB/s':>11} {'busbw GB/s':>11}"
    ]
    previous = None
    for row in rows:
        if previous not in (None, row.size_bytes):
            lines.append("")
        previous = row.size_bytes
        lines.append(
            f"{row.op:<10} {format_size(row.size_bytes):>10} {row.impl:<14} {row.ranks:>5} "
            f"{row.iterations:>6} {row.min_us:>11.1f} {row.p50_us:>11.1f} {row.p99_us:>11.1f} "
            f"{_bandwidth(row.algbw_gbs):>11} {_bandwidth(row.busbw_gbs):>11}"
        )
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


def _bandwidth(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
