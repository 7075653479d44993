"""Targets and jobs of `python -m benchmarks`: from figures to verdicts; nothing is measured."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

import mydist as md
from benchmarks.__main__ import main
from benchmarks.jobs import gpu_slots, gpu_staging
from benchmarks.jobs.__main__ import JOBS
from benchmarks.jobs.comparisons import interval
from benchmarks.jobs.gpu_slots import check_sight, extra_launches
from benchmarks.jobs.gradients import InSlots, shapes_for
from benchmarks.jobs.job import JobArguments, do_without_sharing, times
from benchmarks.jobs.profiled import Blind, Work, count_work
from benchmarks.results import Results, format_figures
from benchmarks.suites import SUITES, Setting
from benchmarks.targets import CORE2, GPU_TARGETS, RECORDING, STEADY, TARGETS
from benchmarks.verdicts import format_table, judge, summary
from mydist.bench.devices import why_no_gpu
from mydist.bench.problem import WrongResult
from mydist.bench.results import Measured, Row, Subject, make_row
from mydist.optim.explain import Explanation, Fact


def row(impl: str, size: int, time_us: float) -> Row:
    return make_row(Subject("allreduce", impl, "float32", 2, size), Measured([time_us]))


def test_every_row_of_the_tables_is_there() -> None:
    every = (*TARGETS, *GPU_TARGETS)
    of_ranks = {f"A{n}" for n in (*range(1, 12), 13, 14)}
    of_servers = {f"S{n}" for n in range(1, 8)}
    assert {target.row for target in TARGETS} == of_ranks | of_servers | {"Z1", "Z2"}
    assert {target.row for target in GPU_TARGETS} == {"G2", "G4", "G5", "G6"}
    assert {target.suite for target in every} == set(SUITES)
    assert len({(target.row, target.what, target.unit) for target in every}) == len(every)
    assert set(JOBS) < {name.removesuffix("-2") for name in SUITES}


def test_verdicts_of_times_ratios_speeds_shares_and_figures() -> None:
    size = 4 << 20
    times = {"mydist-arena": 150.0, "openmpi": 300.0, "bound": 141.0}
    results = Results(
        rows={CORE2: [row(impl, size, time) for impl, time in times.items()]},
        figures={STEADY: {"messages_per_step": 0.0, "idle_wakeups": 1.0}},
        reasons={CORE2: "without gloo: it is not installed"},
    )
    verdicts = judge(TARGETS, results)
    found = {(v.what, v.unit): (v.verdict, v.measured) for v in verdicts if v.row in ("A3", "A9")}
    verdict, speed = found["4MB arena", "GB/s"]
    assert verdict == "met"
    assert speed == pytest.approx(size / 150e-6 / 1e9)
    assert found["4MB arena against Open MPI", "×"] == ("missed", 2.0)
    assert found["4MB arena, of the widest a[i] *= c pass", "%"] == ("met", 94.0)
    assert found["4MB arena against Gloo", "×"] == ("not measured", None)
    assert found["control messages per step", ""] == ("met", 0.0)
    assert found["idle wake-ups of the engine per second", ""] == ("missed", 1.0)
    text = format_table(verdicts)
    assert "not measured: without gloo: it is not installed" in text
    assert text.endswith(f"3 met, 2 missed, {len(TARGETS) - 5} not measured")


@pytest.mark.parametrize(
    ("ends", "verdict"),
    [((-0.5, 0.75), "met"), ((-0.5, 1.25), "undecided"), ((1.25, 3.0), "missed")],
)
def test_a_figure_that_may_be_on_either_side_is_not_decided(
    ends: tuple[float, float], verdict: str
) -> None:
    low, high = ends
    figures = {"timeline_percent": (low + high) / 2}
    figures |= {"timeline_low_percent": low, "timeline_high_percent": high}
    verdicts = judge(TARGETS, Results(figures={RECORDING: figures}))
    (found,) = [v for v in verdicts if v.what == "timeline on, slower by"]
    assert found.verdict == verdict
    assert found.cells()[3] == f"{(low + high) / 2:.2f} % ({low:.2f} to {high:.2f})"
    assert f"1 {verdict}" in summary(verdicts)


def test_intervals_and_spreads_of_medians() -> None:
    # Of 100 values the true median lies between the 40th and the 61st with a probability of 96 %.
    assert interval([float(n) for n in range(100, 0, -1)]) == (40.0, 61.0)
    assert interval([2.0, 1.0]) == (1.0, 2.0)
    figures = {**times("step", Measured([float(n) for n in range(1, 102)])), "ratio": 2.5}
    assert figures == {"step_us": 51.0, "step_min_us": 1.0, "step_p99_us": 100.0, "ratio": 2.5}
    assert format_figures(figures).splitlines() == [
        "  step_us     51.00 (min 1.00, p99 100.00)",
        "  ratio       2.50",
    ]


def test_what_there_is_no_time_for_is_named_and_the_file_becomes_a_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "targets.json"
    arguments = ["--only", "A9", "--commit", "abc", "--json", str(path)]
    assert main([*arguments, "--minutes", "0"]) == 1
    reason = "the 0 minutes were over, see --minutes"
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"NOT MEASURED, 2 of 2: A9 control messages per step ({reason}); "
        f"A9 idle wake-ups of the engine per second ({reason})"
    )
    given: list[float] = []

    def steady(name: str, setting: Setting, results: Any) -> None:
        given.append(setting.timeout_s)
        results.figures[name] = {"messages_per_step": 0.0, "idle_wakeups": 3.0}

    monkeypatch.setitem(SUITES, "steady", steady)
    assert main(arguments) == 0
    assert main([*arguments, "--minutes", "2"]) == 0
    assert "NOT MEASURED" not in capsys.readouterr().out
    assert given[0] == Setting.timeout_s
    assert 60 < given[1] <= 120
    assert main(["--markdown", "--json", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("mydist at commit abc.")
    assert "| A9  | idle wake-ups of the engine per second | = 0    | 3        | missed  |" in lines


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "G5"], "no G5 without --gpu, but A1,A2,"),
        (["--gpu", "--only", "G4,A1"], "no A1 with --gpu, but G2,G4,G5,G6"),
    ],
)
def test_a_row_that_is_not_in_the_table_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert message in capsys.readouterr().err


def test_without_a_gpu_every_row_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = why_no_gpu()
    if not reason:
        pytest.skip("there is a GPU")
    path = tmp_path / "gpu.json"
    monkeypatch.setenv("PATH", "")  # Nor is there git.
    assert main(["--gpu", "--json", str(path)]) == 0
    assert capsys.readouterr().out.count(f"not measured: {reason}") == len(GPU_TARGETS)
    document = json.loads(path.read_text())
    assert document["commit"] == "unknown"
    assert {verdict["reason"] for verdict in document["verdicts"]} == {reason}


def event(category: str, name: str, begin: float, length: float = 1.0) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": length}


def test_work_and_waits_are_counted_in_a_trace() -> None:
    first, second = (event("user_annotation", "mydist.profiled", at, 10.0) for at in (100, 200))
    before = [event("kernel", "fill", 50), event("cuda_runtime", "cudaDeviceSynchronize", 51)]
    work = [
        event("kernel", "void mydist::Convert", 105),
        event("kernel", "ncclDevKernel_AllReduce", 300),  # Begins when the host is long gone.
        event("gpu_memcpy", "Memcpy DtoD", 106),
        event("gpu_memset", "Memset", 205),
    ]
    calls = [
        event("cuda_runtime", "cudaLaunchKernel", 104),
        event("cuda_runtime", "cudaMemcpyAsync", 105),
        event("cuda_runtime", "cudaDeviceSynchronize", 150),  # The benchmark's own.
        event("cpu_op", "aten::add", 105),
        {"ph": "i", "name": "Iteration Start", "ts": 100},
    ]
    on_gpu = event("gpu_user_annotation", "mydist.profiled", 40, 500.0)
    events = [first, second, on_gpu, *work, *calls]
    expected = Work(calls=2, launches=4, collectives=1, waits=0)
    assert count_work({"traceEvents": [*before, *events]}, on_gpu=True) == expected
    for half in before:
        with pytest.raises(Blind):
            count_work({"traceEvents": [half, *events]}, on_gpu=True)
    waits = ("cudaStreamSynchronize", "cuCtxSynchronize", "cudaMemcpy", "cuMemcpyDtoH_v2")
    told = [first, *(event("cuda_driver", name, 104) for name in waits)]
    assert count_work({"traceEvents": told}, on_gpu=False).waits == len(waits)


def test_launches_that_are_neither_torchs_nor_nccls_are_extra() -> None:
    plain = Work(4, 100, 0, 0)
    for launches, collectives, extra in (
        (108, 8, 0.0),  # Of NCCL, one for each bucket.
        (109, 8, 0.125),  # Another kernel in one of the steps.
        (116, 16, 1.0),  # NCCL twice for each bucket.
        (108, 7, 0.125),  # Two buckets were reduced together; what is more is no less for it.
    ):
        assert extra_launches(plain, Work(4, launches, collectives, 0), buckets=2) == extra
    with pytest.raises(Blind, match="107 launches seen, 8 of NCCL, where torch alone has 100"):
        check_sight(plain, Work(4, 107, 8, 0), 25, ranks=2)


@pytest.mark.usefixtures("job")
def test_gradients_that_are_wrong_or_lie_elsewhere_do_not_pass() -> None:
    shapes = [(3, 2), (5,)]
    for views in (True, False):
        trainee = InSlots(shapes)
        trainee.reducer.set_buffer_views(views)
        for _ in range(3):
            gpu_slots.run_step(trainee, [torch.full(shape, 2.0) for shape in shapes])
        trainee.check(2.0)
        with pytest.raises(WrongResult, match="gradient 0 on rank 0 is not 3.0"):
            trainee.check(3.0)
    with pytest.raises(WrongResult, match="do not lie side by side"):
        trainee.check_places()
    arguments = JobArguments(smoke=True)
    figures = gpu_slots.measure(arguments)
    assert figures["buckets"] >= 1
    assert figures["copied_bytes"] == figures["pack_bytes"] == figures["extra_launches"] == 0


def test_the_slowest_stage_between_hosts_is_what_the_whole_is_compared_with() -> None:
    times = {"fetch_us": 2000.0, "network_us": 8000.0, "deliver_us": 1000.0, "staged_us": 10000.0}
    assert gpu_staging.judge(times, 2)["percent"] == 80
    assert gpu_staging.judge(times, 2)["network_gbs"] == pytest.approx((64 << 20) / 8000e-6 / 1e9)
    assert "percent" not in gpu_staging.judge(times, 1)


def test_only_ranks_that_share_a_gpu_over_nccl_are_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for device, ranks, choice, missing in (
        ("cuda", 2, "staged through pinned memory", True),
        ("cuda", 2, "NCCL between all ranks", False),
        ("cuda", 1, "", False),
        ("cpu", 2, "", False),
    ):
        facts = {"GPU path": Fact(choice, "")} if choice else {}
        monkeypatch.setattr(md, "size", lambda ranks=ranks: ranks)
        monkeypatch.setattr(md, "explain", lambda facts=facts: Explanation(facts))
        assert do_without_sharing(torch.device(device)) == missing


def test_resnet50_has_its_161_parameters() -> None:
    shapes = shapes_for(JobArguments(smoke=False))
    assert len(shapes) == 161
    assert sum(math.prod(shape) for shape in shapes) == 25_557_032
