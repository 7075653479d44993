"""The benchmark command runs, checks its sums and writes its rows; its figures are not judged."""

from __future__ import annotations

import json
from pathlib import Path

from multiproc.job import launch


def test_allreduce_next_to_torch(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    command = ["-m", "mydist.bench", "allreduce", "--sizes", "8,1K", "--peers", "torch-gloo"]
    more = ["--rounds", "2", "--iterations", "3", "--json", str(path)]
    outcome = launch(2, "gloo", *command, *more).expect_success()
    rows = json.loads(path.read_text())
    assert [(r["impl"], r["size_bytes"], r["iterations"]) for r in rows] == [
        (impl, size, 6) for size in (8, 1024) for impl in ("mydist-gloo", "torch-gloo")
    ]
    assert all(0 < r["min_us"] <= r["p50_us"] <= r["p99_us"] for r in rows)
    assert "busbw" in outcome.output


def test_an_unknown_peer_is_refused() -> None:
    outcome = launch(1, "gloo", "-m", "mydist.bench", "allreduce", "--peers", "nothing")
    assert outcome.code == 2
    assert "unknown peer 'nothing', expected one of openmpi, torch-gloo" in outcome.output


def test_a_training_step() -> None:
    command = ["-m", "mydist.bench", "step", "--rounds", "1", "--steps", "3", "--batch", "4"]
    outcome = launch(2, "gloo", *command).expect_success()
    assert all(name in outcome.output for name in ("compute", "mydist-gloo", "ddp-gloo"))
