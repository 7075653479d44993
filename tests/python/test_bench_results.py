"""Rows, table and JSON of the benchmark; no measuring here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mydist.bench.results import (
    Measured,
    Row,
    Subject,
    bandwidths,
    format_size,
    format_table,
    make_row,
    parse_size,
    quantile,
    read_json,
    write_json,
)


@pytest.mark.parametrize(
    ("text", "size"), [("8", 8), ("64K", 65536), ("4m", 4 << 20), ("1G", 1 << 30), ("1000", 1000)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size
    assert parse_size(format_size(size)) == size


@pytest.mark.parametrize("text", ["", "0", "-8", "K", "4T", "1.5M", "8 K"])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="expected a positive number such as 8, 64K"):
        parse_size(text)


def test_quantiles() -> None:
    values = [float(v) for v in range(1, 101)]
    assert quantile(values, 0.0) == 1
    assert quantile(values, 0.5) in (50, 51)
    assert quantile(values, 0.99) == 99
    assert quantile([7.0], 0.99) == 7


def row_of(impl: str, size: int, *times_us: float) -> Row:
    subject = Subject("allreduce", impl, "float32", 2, size)
    return make_row(subject, Measured(list(times_us), 0.5, 6.0), bound_us=0.5)


def test_bandwidths_are_those_of_the_median() -> None:
    row = make_row(
        Subject("allreduce", "x", "float32", 4, 8_000_000), Measured([3000.0, 1000.0, 2000.0])
    )
    assert (row.min_us, row.p50_us, row.p99_us, row.iterations) == (1000, 2000, 3000, 3)
    assert row.algbw_gbs == pytest.approx(4.0)
    assert row.busbw_gbs == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("op", "algbw", "busbw"),
    [
        ("allreduce", 1.0, 1.5),
        ("allgather", 4.0, 3.0),
        ("broadcast", 1.0, 1.0),
        ("alltoall", 1.0, 0.75),
        ("reducescatter", 1.0, 0.75),
    ],
)
def test_bandwidths_by_collective(op: str, algbw: float, busbw: float) -> None:
    assert bandwidths(op, 4, 1_000_000, 1000.0) == pytest.approx((algbw, busbw))


def test_what_moves_nothing_has_no_bandwidth() -> None:
    row = make_row(Subject("barrier", "x", "float32", 2, 0), Measured([1.0], 1.0, 3.0))
    assert row.algbw_gbs is row.busbw_gbs is row.cpu_seconds_per_gb is None
    assert row.context_switches == 3.0


def test_costs_are_per_call() -> None:
    row = row_of("x", 1_000_000, 1.0, 2.0)
    assert row.context_switches == 3.0
    assert row.cpu_seconds_per_gb == pytest.approx(250.0)
    assert row.efficiency == pytest.approx(0.25)


def test_rounds_add_up() -> None:
    measured = Measured([1.0], 2.0, 3.0)
    measured.add(Measured([4.0], 5.0, 6.0))
    assert measured == Measured([1.0, 4.0], 7.0, 9.0)


def test_json_has_the_documented_names_and_comes_back(tmp_path: Path) -> None:
    rows = [row_of("x", 8, 1.0, 2.0)]
    path = tmp_path / "rows.json"
    write_json(rows, path)
    names = "op impl dtype ranks size_bytes iterations min_us p50_us p99_us algbw_gbs busbw_gbs"
    more = "bound_us efficiency context_switches cpu_seconds_per_gb"
    assert set(json.loads(path.read_text())[0]) == {*names.split(), *more.split()}
    assert read_json(path) == rows


def test_the_table_names_every_row() -> None:
    rows = [row_of(impl, size, 1.0) for size in (8, 65536) for impl in "ab"]
    lines = [line.split() for line in format_table(rows).splitlines() if line]
    assert [line[1:3] for line in lines[1:]] == [["8", "a"], ["8", "b"], ["64K", "a"], ["64K", "b"]]
