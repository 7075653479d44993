"""Rows, table and JSON of the benchmark; no measuring here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mydist.bench.results import (
    allreduce_row,
    format_size,
    format_table,
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


def test_bandwidths_are_those_of_the_median() -> None:
    row = allreduce_row("x", "float32", 4, 8_000_000, [3000.0, 1000.0, 2000.0])
    assert (row.min_us, row.p50_us, row.p99_us, row.iterations) == (1000, 2000, 3000, 3)
    assert row.algbw_gbs == pytest.approx(4.0)
    assert row.busbw_gbs == pytest.approx(6.0)


def test_json_has_the_documented_names_and_comes_back(tmp_path: Path) -> None:
    rows = [allreduce_row("x", "float32", 2, 8, [1.0, 2.0])]
    path = tmp_path / "rows.json"
    write_json(rows, path)
    names = "op impl dtype ranks size_bytes iterations min_us p50_us p99_us algbw_gbs busbw_gbs"
    assert set(json.loads(path.read_text())[0]) == {*names.split(), "bound_us", "efficiency"}
    assert read_json(path) == rows


def test_the_table_names_every_row() -> None:
    rows = [allreduce_row(impl, "float32", 2, size, [1.0]) for size in (8, 65536) for impl in "ab"]
    lines = [line.split() for line in format_table(rows).splitlines() if line]
    assert [line[1:3] for line in lines[1:]] == [["8", "a"], ["8", "b"], ["64K", "a"], ["64K", "b"]]
