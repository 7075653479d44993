"""The benchmarks of one GPU without one: from figures to verdicts, and why there are none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mydist.bench.devices import why_no_gpu

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.usefixtures("_repository_on_path")


@pytest.fixture
def _repository_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT))


def event(category: str, name: str, begin: float, length: float = 1.0) -> dict[str, Any]:
    return {"ph": "X", "cat": category, "name": name, "ts": begin, "dur": length}


def test_work_and_waits_are_counted_in_a_trace() -> None:
    from benchmarks.jobs.profiled import Blind, Work, count_work

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
        event("cuda_driver", "cuLaunchKernelEx", 204),
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
    assert count_work({"traceEvents": events}, on_gpu=False) == expected


@pytest.mark.parametrize(
    "name",
    [
        "cudaStreamSynchronize",
        "cudaEventSynchronize",
        "cudaDeviceSynchronize",
        "cuStreamSynchronize",
        "cuCtxSynchronize",
        "cudaMemcpy",
        "cuMemcpyDtoH_v2",
    ],
)
def test_every_call_that_waits_counts(name: str) -> None:
    from benchmarks.jobs.profiled import count_work

    mark = event("user_annotation", "mydist.profiled", 100, 10.0)
    trace = {"traceEvents": [mark, event("cuda_runtime", name, 104)]}
    assert count_work(trace, on_gpu=False).waits == 1


def test_what_was_prepared_is_over_before_the_first_call_by_any_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from benchmarks.jobs import profiled

    traces: list[dict[str, Any]] = []
    monkeypatch.setattr(profiled, "count_work", lambda trace, on_gpu: traces.append(trace))
    prepare, call = (lambda: torch.ones(1).exp_()), (lambda: None)
    profiled.profile_calls(prepare, call, 2, torch.device("cpu"))
    spans = {e["name"]: e for e in reversed(traces[0]["traceEvents"]) if e.get("ph") == "X"}
    prepared, first = spans["aten::exp_"], spans["mydist.profiled"]
    assert first["ts"] - (prepared["ts"] + prepared["dur"]) >= 1000


def test_the_slowest_stage_is_what_the_whole_is_compared_with() -> None:
    from benchmarks.jobs.gpu_staging import judge

    times = {"fetch_us": 2000.0, "network_us": 8000.0, "deliver_us": 1000.0, "staged_us": 10000.0}
    found = judge(times, 2)
    assert found["percent"] == 80
    assert found["network_gbs"] == pytest.approx((64 << 20) / 8000e-6 / 1e9)


def test_one_host_has_no_slowest_stage_between_hosts() -> None:
    from benchmarks.jobs.gpu_staging import judge

    times = {f"{stage}_us": 1000.0 for stage in ("fetch", "network", "deliver", "staged")}
    assert "percent" not in judge(times, 1)
    assert judge(times, 1)["staged_gbs"] == judge(times, 2)["staged_gbs"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "G5"], "no G5 without --gpu, but A1,A2,"),
        (["--gpu", "--only", "G4,A1"], "no A1 with --gpu, but G2,G4,G5,G6"),
        (["--gpu", "--only", "G"], "no G with --gpu"),
    ],
)
def test_a_row_that_is_not_in_the_table_is_refused(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.__main__ import main

    path = tmp_path / "figures.json"
    with pytest.raises(SystemExit) as ended:
        main([*arguments, "--json", str(path)])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err
    assert not path.exists()


def test_an_old_nccl_shares_a_gpu_between_hosts_and_a_new_one_when_told_to() -> None:
    from mydist.bench.devices import let_ranks_share_the_gpu

    old = [let_ranks_share_the_gpu(rank, 22809) for rank in ("0", "1")]
    assert old[0]["NCCL_HOSTID"] != old[1]["NCCL_HOSTID"]
    assert let_ranks_share_the_gpu("1", 23003) == {
        "NCCL_MULTI_RANK_GPU_ENABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
    }


def test_verdicts_of_the_rows_at_their_limits() -> None:
    from benchmarks.results import Results
    from benchmarks.targets import (
        GPU_BUCKET,
        GPU_OVERHEAD,
        GPU_SLOTS,
        GPU_SLOTS2,
        GPU_STAGING,
        GPU_TARGETS,
    )
    from benchmarks.verdicts import judge

    overhead = {"gpt_percent": 0.5, "gpt_low_percent": 0.25, "gpt_high_percent": 1.5}
    overhead |= {f"resnet50_{name}": 1.0 for name in ("percent", "low_percent", "high_percent")}
    figures = {
        GPU_SLOTS: {"pack_bytes": 0.0, "copied_bytes": 0.5, "extra_launches": 0.0625},
        GPU_SLOTS2: {"pack_bytes": 4.0, "copied_bytes": 0.0, "extra_launches": 0.0},
        GPU_STAGING: {"percent": 70.0, "chunks_in_flight": 3.0},
        GPU_OVERHEAD: overhead,
        GPU_BUCKET: {"host_us": 10.5, "launches": 3.0, "waits": 0.05},
    }
    found = [v.verdict for v in judge(GPU_TARGETS, Results(figures=figures))]
    assert found == [
        *("met", "missed", "missed"),
        *("missed", "met", "met"),
        *("met", "missed"),
        *("met", "undecided"),
        *("missed", "met", "missed"),
        *["not measured"] * 3,
    ]


def test_without_a_gpu_every_row_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks.__main__ import main
    from benchmarks.targets import GPU_TARGETS

    reason = why_no_gpu()
    if not reason:
        pytest.skip("there is a GPU")
    path = tmp_path / "targets.json"
    monkeypatch.setenv("PATH", "")  # Nor is there git.
    assert main(["--gpu", "--json", str(path)]) == 0
    assert capsys.readouterr().out.count(f"not measured: {reason}") == len(GPU_TARGETS)
    assert json.loads(path.read_text())["commit"] == "unknown"
    assert main(["--gpu", "--commit", "abc", "--json", str(path)]) == 0
    assert json.loads(path.read_text())["commit"] == "abc"
    verdicts = json.loads(path.read_text())["verdicts"]
    assert {verdict["reason"] for verdict in verdicts} == {reason}
