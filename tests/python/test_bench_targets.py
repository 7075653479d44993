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


def test_every_row_of_the_tables_is_there() -> None:
    from benchmarks.suites import SUITES
    from benchmarks.targets import GPU_TARGETS, TARGETS

    assert {target.row for target in TARGETS} == {f"A{n}" for n in (*range(1, 12), 13, 14)}
    every = (*TARGETS, *GPU_TARGETS)
    assert {target.row for target in GPU_TARGETS} == {"G2", "G4", "G5", "G6"}
    assert {target.suite for target in every} == set(SUITES)
    assert len({(target.row, target.what, target.unit) for target in every}) == len(every)


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


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [((-0.5, 0.75), "met"), ((-0.5, 1.25), "undecided"), ((1.25, 3.0), "missed")],
)
def test_a_figure_that_may_be_on_either_side_is_not_decided(
    ends: tuple[float, float], verdict: str
) -> None:
    from benchmarks.results import Results
    from benchmarks.targets import RECORDING, TARGETS
    from benchmarks.verdicts import judge, summary

    low, high = ends
    figures = {"timeline_percent": (low + high) / 2}
    figures |= {"timeline_low_percent": low, "timeline_high_percent": high}
    verdicts = judge(TARGETS, Results(figures={RECORDING: figures}))
    (found,) = [v for v in verdicts if v.what == "timeline on, slower by"]
    assert found.verdict == verdict
    assert found.cells()[3] == f"{(low + high) / 2:.2f} % ({low:.2f} to {high:.2f})"
    assert f"1 {verdict}" in summary(verdicts)


def test_the_interval_of_a_median_is_that_of_the_binomial_distribution() -> None:
    from benchmarks.jobs.recording_cost import interval

    # Of 100 values the true median lies between the 40th and the 61st with a probability of 96 %.
    assert interval([float(n) for n in range(100, 0, -1)]) == (40.0, 61.0)
    assert interval([2.0, 1.0]) == (1.0, 2.0)


def test_medians_have_their_spread_beside_them() -> None:
    from benchmarks.jobs.figures import times
    from benchmarks.results import format_figures

    figures = {**times("step", Measured([float(n) for n in range(1, 102)])), "ratio": 2.5}
    assert figures == {"step_us": 51.0, "step_min_us": 1.0, "step_p99_us": 100.0, "ratio": 2.5}
    assert format_figures(figures).splitlines() == [
        "  step_us     51.00 (min 1.00, p99 100.00)",
        "  ratio       2.50",
    ]


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
    assert main(["--only", "A9", "--minutes", "0", "--json", str(path)]) == 1
    lines = capsys.readouterr().out.splitlines()
    reason = "the 0 minutes were over, see --minutes"
    assert lines[-1] == (
        f"NOT MEASURED, 2 of 2: A9 control messages per step ({reason}); "
        f"A9 idle wake-ups per second ({reason})"
    )
    assert json.loads(path.read_text())["rows"] == {}


def test_without_a_limit_every_suite_is_given_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import suites
    from benchmarks.__main__ import main
    from benchmarks.results import Results

    given: list[float] = []

    def steady(setting: suites.Setting, results: Results) -> None:
        given.append(setting.timeout_s)
        results.figures["steady"] = {"messages_per_step": 0.0, "idle_wakeups": 0.0}

    monkeypatch.setitem(suites.SUITES, "steady", steady)
    arguments = ["--only", "A9", "--json", str(tmp_path / "targets.json")]
    assert main(arguments) == 0
    assert main([*arguments, "--minutes", "2"]) == 0
    usual, limited = given
    assert usual == suites.Setting.timeout_s
    assert 60 < limited <= 120
    assert "NOT MEASURED" not in capsys.readouterr().out


def test_resnet50_has_its_161_parameters() -> None:
    from benchmarks.jobs.resnet50 import parameter_shapes

    shapes = parameter_shapes()
    assert len(shapes) == 161
    assert sum(math.prod(shape) for shape in shapes) == 25_557_032


def test_how_far_the_cores_were_is_a_table_of_near_and_far() -> None:
    from benchmarks.results import Cores, format_cores

    cores = [
        Cores("mydist-arena", 8192, 180.0, 100, 300, near_us=0.3351, far_us=1.28),
        Cores("mydist-arena", 8, 60.0, 400, 0, near_us=0.07),
        Cores("openmpi", 8192, 61.0, 0, 8, far_us=28910.4),
    ]
    assert format_cores(cores).splitlines() == [
        "| size | mydist-arena | openmpi |",
        "|---|---|---|",
        "| 8B | 0.07 / - (100 %) | - |",
        "| 8KB | 0.3351 / 1.28 (25 %) | - / 28910 (0 %) |",
    ]
