"""What ranks really hold while they train sharded, beside the formula."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from deep import deep

from multiproc.job import launch

WORKER = str(Path(__file__).parent / "workers" / "sharded_peak.py")
# Bytes that do not grow with the model: what malloc keeps, and small collectives.
FIXED = 40e6


@pytest.mark.parametrize(("ranks", "millions"), [(2, 64), deep(3, 64), deep(2, 128)])
def test_stage_2_needs_what_the_formula_says(ranks: int, millions: int) -> None:
    output = launch(ranks, "local", WORKER, "2", str(millions), timeout=200).expect_success().output
    rows = [json.loads(line[line.index("{") :]) for line in output.splitlines() if "{" in line]
    assert sorted(row["rank"] for row in rows) == list(range(ranks))
    for row in rows:
        assert row["states"] == pytest.approx((4 + 12 / ranks) * millions * 1e6, rel=1e-4)
        assert row["peak"] < 1.03 * row["states"] + row["live"] + FIXED, row
