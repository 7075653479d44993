"""Targets and verdicts: what is met, what is missed, and what was not measured; no measuring."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from mydist.bench.results import Measured, Row, Subject, make_row

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.usefixtures("_repository_on_path")


@pytest.fixture
def _repository_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def row(impl: str, size: int, time_us: float, bound_us: float | None = None) -> Row:
    subject = Subject("allreduce", impl, "float32", 2, size)
    return make_row(subject, Measured([time_us]), bound_us)


def test_every_row_of_the_cpu_table_is_there() -> None:
    from benchmarks.suites import SUITES
    from benchmarks.targets import TARGETS

    assert {target.row for target in TARGETS} == {f"A{n}" for n in (*range(1, 12), 13, 14)}
    assert {target.suite for target in TARGETS} == set(SUITES)
    assert len({(target.row, target.what, target.unit) for target in TARGETS}) == len(TARGETS)


def test_verdicts_of_times_ratios_speeds_and_shares() -> None:
    from benchmarks.results import Results
    from benchmarks.targets import CORE2, TARGETS
    from benchmarks.verdicts import judge

    size = 4 << 20
    rows = [
        row("mydist-arena", size, 150.0),
        row("openmpi", size, 300.0),
        row("bound", size, 141.0),
    ]
    verdicts = judge(TARGETS, Results(rows={CORE2: rows}))
    found = {(v.what, v.unit): (v.verdict, v.measured) for v in verdicts if v.row == "A3"}
    verdict, speed = found["4MB arena", "GB/s"]
    assert verdict == "met"
    assert speed == pytest.approx(size / 150e-6 / 1e9)
    assert found["4MB arena against Open MPI", "×"] == ("missed", 2.0)
    assert found["4MB arena, of the widest a[i] *= c pass", "%"] == ("met", 94.0)
    assert found["4MB arena against Gloo", "×"] == ("not measured", None)


def test_reasons_are_named() -> None:
    from benchmarks.results import Results
    from benchmarks.targets import CORE2, TARGETS
    from benchmarks.verdicts import format_text, judge

    results = Results(reasons={CORE2: "without openmpi: it is not installed"})
    text = format_text(judge(TARGETS, results))
    assert "not measured: without openmpi: it is not installed" in text
    assert text.endswith(f"0 met, 0 missed, {len(TARGETS)} not measured")


def test_figures_at_their_limits() -> None:
    from benchmarks.results import Results
    from benchmarks.targets import STEADY, TARGETS
    from benchmarks.verdicts import judge

    def verdicts(messages: float, wakeups: float) -> list[str]:
        figures = {STEADY: {"messages_per_step": messages, "idle_wakeups": wakeups}}
        return [v.verdict for v in judge(TARGETS, Results(figures=figures)) if v.row == "A9"]

    assert verdicts(0, 0) == ["met", "met"]
    assert verdicts(0.01, 1) == ["missed", "missed"]


def test_the_json_file_becomes_the_table_of_the_docs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.__main__ import main
    from benchmarks.results import Results
    from benchmarks.targets import LATENCY, TARGETS
    from benchmarks.verdicts import judge, to_json

    figures = {LATENCY: {"caller_us": 7.25, "thread_us": 123.0}}
    verdicts = judge(TARGETS, Results(figures=figures))
    path = tmp_path / "targets.json"
    document = {"machine": "M", "commit": "C", "verdicts": to_json(verdicts)}
    path.write_text(json.dumps(document))
    assert main(["--markdown", "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "M; mydist at commit C."
    assert "| A8 | 4 B cached, caller waiting | ≤ 10 µs | 7.25 µs | met |  |" in lines
    assert "| A8 | 4 B cached, engine's thread | ≤ 90 µs | 123 µs | missed |  |" in lines


def test_what_there_is_no_time_for_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.__main__ import main

    path = tmp_path / "targets.json"
    assert main(["--only", "A9", "--minutes", "0", "--json", str(path)]) == 0
    assert "not measured: the 0 minutes were over, see --minutes" in capsys.readouterr().out
    assert json.loads(path.read_text())["rows"] == {}


def test_resnet50_has_its_161_parameters() -> None:
    from benchmarks.jobs.resnet50 import parameter_shapes

    shapes = parameter_shapes()
    assert len(shapes) == 161
    assert sum(math.prod(shape) for shape in shapes) == 25_557_032
