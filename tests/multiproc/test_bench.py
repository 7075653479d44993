"""The benchmark commands run, check their results and write their rows; no figure is judged."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from multiproc.conftest import missing_backends
from multiproc.job import TESTS, job_environment, launch
from mydist.bench.codecs import every_codec

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

ROOT = TESTS.parent
# On a busy machine the ranks wait long for a peer that is compiled and started.
PATIENT = {"MYDIST_STALL_SHUTDOWN_SECONDS": "0"}
BACKENDS = {"openmpi": "mpi", "gloo": "gloo"}  # What there is, where the peer can be compiled.
CORE = Path(os.environ.get("BENCH_ALLREDUCE", ROOT / "build/dev/benchmarks/bench_allreduce"))

# The first calls at a size must be frozen when they are timed; else they do not warm up for long.
EVERY_COLLECTIVE = """
import torch, mydist as md
from mydist.bench.contest import measure, run_size
from mydist.bench.implementations import Mydist, TorchGloo, close_torch_gloo
from mydist.bench.problem import COLLECTIVES, Plan
from mydist.bench.results import format_table
md.init()
ranks = Mydist()
for op in ("allreduce", "broadcast", "allreduce"):
    before = md.stats()["frozen_steps"]
    run_size(Plan(op, [8], torch.float32, 1, 50), ranks, 8)
    print("frozen", op, md.stats()["frozen_steps"] - before)
inside = [ranks, TorchGloo(one_host=True)]
for op in COLLECTIVES:
    for dtype in (torch.float32, torch.int64):
        sizes = [0] if op == "barrier" else [8, 200_000]
        rows = measure(Plan(op, sizes, dtype, 1, 2), inside, [])
        if md.rank() == 0:
            print(format_table(rows))
close_torch_gloo()
md.shutdown()
"""


def test_allreduce_next_to_its_peers(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    command = ["-m", "mydist.bench", "allreduce", "--sizes", "8,64K"]
    command += ["--peers", "torch-gloo,openmpi,gloo", "--rounds", "2", "--iterations", "3"]
    outcome = launch(2, "gloo", *command, "--json", str(path), timeout=120, env=PATIENT)
    outcome.expect_success()
    rows = json.loads(path.read_text())
    # What cannot run here is named with the reason, and is not in the table.
    assert "compiling openmpi and gloo, some seconds for each" in outcome.output
    named = [peer for peer in BACKENDS if f"without {peer}: " in outcome.output]
    assert named == [peer for peer in BACKENDS if BACKENDS[peer] in missing_backends()]
    there = ["mydist-gloo", "torch-gloo", *(peer for peer in BACKENDS if peer not in named)]
    assert [(r["impl"], r["size_bytes"], r["iterations"]) for r in rows] == [
        (impl, size, 6) for size in (8, 64 << 10) for impl in there
    ]
    assert all(0 < r["min_us"] <= r["p50_us"] <= r["p99_us"] for r in rows)
    assert all(r["context_switches"] >= 0 and r["cpu_seconds_per_gb"] > 0 for r in rows)
    assert all(r["bound_us"] > 0 for r in rows if r["size_bytes"] > 8)
    assert "busbw" in outcome.output


def test_every_collective_gives_right_results_and_is_frozen_when_it_is_timed() -> None:
    # The machine may be slow: a rank that is late is no reason to negotiate.
    env = {"MYDIST_FREEZE_AFTER": "2", "MYDIST_STALL_WARNING_SECONDS": "600"}
    command = ("-c", EVERY_COLLECTIVE)
    output = launch(2, "local", *command, timeout=120, env=env).expect_success().output
    for op in ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier"):
        assert f"{op} " in output
    counts = re.findall(r"frozen (\w+) (\d+)", output)
    assert len(counts) == 6
    assert all(int(count) >= 50 for _, count in counts), output


def test_a_wrong_gradient_ends_the_benchmark() -> None:
    env = {"BENCH_FALSIFY": "mydist-gloo", **PATIENT}
    command = ("-m", "mydist.bench", "step", "--steps", "3", "--batch", "2")
    outcome = launch(2, "gloo", *command, env=env)
    assert outcome.code != 0
    # After three that warm up, in the first round.
    assert "had different gradients in step 5 of a round" in outcome.output


CODECS = ("-m", "mydist.bench", "codecs", "--sizes", "64K", "--size", "256K", "--rounds", "2")


def test_every_codec_sums_over_the_ranks_next_to_plain_values(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    launch(2, "local", *CODECS, "--json", str(path), env=PATIENT).expect_success()
    content = json.loads(path.read_text())
    sums = {row["impl"]: row for row in content["sums"]}
    assert {"none", "fp16", "bf16"} | {codec.name for codec in every_codec()} == sums.keys()
    assert all(row["iterations"] == 2 and row["p50_us"] > 0 for row in sums.values())
    assert sums["none"]["error"] == 0 < sums["int8"]["error"] < 0.02
    assert {row["hosts"] for row in content["costs"]} == {2}


def test_sums_that_differ_between_ranks_end_the_benchmark() -> None:
    outcome = launch(2, "local", *CODECS, env={"BENCH_FALSIFY": "int8", **PATIENT})
    assert outcome.code != 0
    assert "WrongResult: int8: the ranks have different sums" in outcome.output


@pytest.mark.skipif(not CORE.exists(), reason=f"{CORE} was not built, see make bench")
@pytest.mark.parametrize("name", ["bound", "mydist-engine"])
def test_the_core_benchmark_notices_wrong_results(name: str) -> None:
    env = job_environment({"BENCH_FALSIFY": name})
    command = [str(CORE), "2", "1024:2:2"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode != 0
    assert f"{name} gave a wrong result on rank 1: element 512 of 1024" in done.stderr


def run_smoke(path: Path, *arguments: str) -> dict[str, Any]:
    """What `python -m benchmarks` writes, run as small as can be."""
    missing = sorted({"mpi", "gloo"} & missing_backends().keys())
    if missing or not CORE.exists():
        pytest.skip(f"not built: {', '.join(missing)} {CORE}")
    command = [sys.executable, "-m", "benchmarks", "--smoke", "--json", str(path), *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env=job_environment(PATIENT), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict" in done.stdout
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@pytest.mark.deep
def test_every_suite_measures(tmp_path: Path) -> None:
    smoke = run_smoke(tmp_path / "targets.json", "--core", str(CORE))
    rows, figures = smoke["rows"], smoke["figures"]
    assert {suite: {row["impl"] for row in rows[suite]} for suite in ("core-4", "step-gpt")} == {
        "core-4": {*(f"mydist-{kind}" for kind in ("arena", "private", "engine"))}
        | {"bound", "plain-pass", "openmpi", "gloo"},
        "step-gpt": {"compute", "mydist-local", "ddp-gloo"},
    }
    assert all(row["p50_us"] > 0 and row["bound_us"] > 0 for row in rows["core-2"])
    assert {"tcp-gloo", "tcp-mpi", "hierarchy", "step-resnet"} < rows.keys()
    sent = figures["hierarchy-bytes"]
    assert sent["sent_bytes"] > sent["excess_bytes"] == 0
    spread = ("gradients", "kept_mydist"), ("latency", "thread"), ("recording", "timeline_on")
    for suite, stem in spread:
        found = figures[suite]
        assert 0 < found[f"{stem}_min_us"] <= found[f"{stem}_us"] <= found[f"{stem}_p99_us"]
    # One copy of gradients that backward makes, none of those that it adds to.
    assert figures["gradients"]["copied_bytes"] == 4 * (64 * 3 * 7 * 7 + 64 + 10 * 64)
    assert figures["gradients"]["kept_copied_bytes"] == 0
    assert {"messages_per_step", "idle_wakeups"} <= figures["steady"].keys()


@pytest.mark.deep
def test_the_jobs_for_a_gpu_run_in_host_memory(tmp_path: Path) -> None:
    document = run_smoke(tmp_path / "targets.json", "--gpu", "cpu")
    assert {verdict["row"] for verdict in document["verdicts"]} == {"G2", "G4", "G5", "G6"}
    assert all(verdict["measured"] is not None for verdict in document["verdicts"])
    figures = document["figures"]
    assert figures["gpu-staging"]["hosts"] == 2
    assert all(figures[suite]["batches"] == 1 for suite in ("gpu-bucket", "gpu-bucket-2"))
    assert [figures[suite]["ranks"] for suite in ("gpu-slots", "gpu-slots-2")] == [1, 2]
