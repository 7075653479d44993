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
from deep import deep

from multiproc.conftest import missing_backends
from multiproc.job import TESTS, job_environment, launch

ROOT = TESTS.parent
# On a busy machine the ranks wait long for a peer that is compiled and started.
PATIENT = {"MYDIST_STALL_SHUTDOWN_SECONDS": "0"}
SEPARATE = ("openmpi", "gloo")
BACKENDS = {"openmpi": "mpi", "gloo": "gloo"}  # What there is, where the peer can be compiled.
WAYS = ("off", "on")
CORE = Path(os.environ.get("BENCH_ALLREDUCE", ROOT / "build/dev/benchmarks/bench_allreduce"))

EVERY_COLLECTIVE = """
import sys, torch, mydist as md
from mydist.bench.contest import Plan, measure
from mydist.bench.implementations import Mydist, TorchGloo, close_torch_gloo
from mydist.bench.problem import COLLECTIVES
from mydist.bench.results import format_table
md.init()
inside = [Mydist(), TorchGloo(one_host=True)]
for op in COLLECTIVES:
    for dtype in (torch.float32, torch.int64):
        sizes = [0] if op == "barrier" else [8, 200_000]
        rows = measure(Plan(op, sizes, dtype, 1, 2), inside, [])
        if md.rank() == 0:
            print(format_table(rows))
close_torch_gloo()
md.shutdown()
"""

SETTLED = """
import torch, mydist as md
from mydist.bench.contest import Plan, run_size
from mydist.bench.implementations import Mydist
md.init()
ranks = Mydist()
for op in ("allreduce", "broadcast", "allreduce"):
    before = md.stats()["frozen_steps"]
    run_size(Plan(op, [8], torch.float32, 1, 50), ranks, 8)
    print("frozen", op, md.stats()["frozen_steps"] - before)
md.shutdown()
"""

PRETENDED_HOSTS = """
import mydist as md
from mydist.bench.__main__ import _pretend_hosts
_pretend_hosts(2)
md.init()
print("hosts", md.cross_size())
md.shutdown()
"""


def test_allreduce_next_to_its_peers(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    peers = ",".join(("torch-gloo", *SEPARATE))
    command = ["-m", "mydist.bench", "allreduce", "--sizes", "8,64K", "--peers", peers]
    more = ["--rounds", "2", "--iterations", "3", "--json", str(path)]
    outcome = launch(2, "gloo", *command, *more, timeout=120, env=PATIENT).expect_success()
    rows = json.loads(path.read_text())
    # What cannot run here is named with the reason, and is not in the table.
    named = [peer for peer in SEPARATE if f"without {peer}: " in outcome.output]
    assert named == [peer for peer in SEPARATE if BACKENDS[peer] in missing_backends()]
    there = ["mydist-gloo", "torch-gloo", *(peer for peer in SEPARATE if peer not in named)]
    assert [(r["impl"], r["size_bytes"], r["iterations"]) for r in rows] == [
        (impl, size, 6) for size in (8, 64 << 10) for impl in there
    ]
    assert all(0 < r["min_us"] <= r["p50_us"] <= r["p99_us"] for r in rows)
    assert all(r["context_switches"] >= 0 and r["cpu_seconds_per_gb"] > 0 for r in rows)
    assert all(r["bound_us"] > 0 for r in rows if r["size_bytes"] > 8)
    assert "busbw" in outcome.output


@pytest.mark.parametrize("backend", [deep("gloo"), "local"])
def test_every_collective_gives_right_results(backend: str) -> None:
    env = {"MYDIST_FREEZE_AFTER": "0"}  # Else calls warm up until they are frozen.
    outcome = launch(3, backend, "-c", EVERY_COLLECTIVE, timeout=120, env=env).expect_success()
    for op in ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier"):
        assert f"{op} " in outcome.output


def test_what_is_timed_is_not_negotiated() -> None:
    # The machine may be slow: a rank that is late is no reason to negotiate.
    env = {"MYDIST_FREEZE_AFTER": "2", "MYDIST_STALL_WARNING_SECONDS": "600"}
    output = launch(2, "local", "-c", SETTLED, env=env).expect_success().output
    counts = re.findall(r"frozen (\w+) (\d+)", output)
    assert [op for op, _ in counts].count("allreduce") == 4
    assert len(counts) == 6
    assert all(int(count) >= 50 for _, count in counts), output


@pytest.mark.parametrize("backend", [deep("gloo"), "mpi"])
def test_pretended_hosts_are_hosts_under_every_launcher(backend: str) -> None:
    outcome = launch(2, backend, "-c", PRETENDED_HOSTS).expect_success()
    assert outcome.output.count("hosts 2") == 2, outcome.output


def test_a_wrong_result_ends_the_benchmark() -> None:
    command = ["-m", "mydist.bench", "allgather", "--sizes", "64", "--falsify", "mydist-gloo"]
    outcome = launch(2, "gloo", *command)
    assert outcome.code != 0
    assert "mydist-gloo: allgather of 64 bytes gave a wrong result on rank 1" in outcome.output


def test_a_wrong_gradient_ends_the_benchmark() -> None:
    command = ["-m", "mydist.bench", "step", "--steps", "3", "--rounds", "2", "--batch", "2"]
    outcome = launch(2, "gloo", *command, "--falsify", "mydist-gloo", env=PATIENT)
    assert outcome.code != 0
    # After three that warm up, in the first round.
    assert "had different gradients in step 5 of a round" in outcome.output


@pytest.mark.deep
def test_peers_that_are_not_installed_are_named(tmp_path: Path) -> None:
    command = ["-m", "mydist.bench", "allreduce", "--sizes", "8", "--rounds", "1"]
    command += ["--iterations", "1", "--peers", "openmpi,gloo"]
    nothing = {"PATH": str(tmp_path), "CXX": "", **PATIENT}
    outcome = launch(2, "gloo", *command, env=nothing).expect_success()
    assert "without openmpi: mpicc and mpirun are not on PATH" in outcome.output
    assert "without gloo: no C++ compiler is on PATH" in outcome.output


def test_an_unknown_peer_is_refused() -> None:
    outcome = launch(1, "gloo", "-m", "mydist.bench", "allreduce", "--peers", "nothing")
    assert outcome.code == 2
    assert "unknown peer 'nothing', expected one of openmpi, gloo, torch-gloo" in outcome.output


# All of them look at one run.
needs_smoke = pytest.mark.deep(group="benchmarks --smoke")


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What `make bench` writes of every row, run as small as can be."""
    missing = sorted({"mpi", "gloo"} & missing_backends().keys())
    if missing:
        pytest.skip(f"not built: {', '.join(missing)}")
    if not CORE.exists():
        pytest.skip(f"{CORE} was not built, see make bench")
    path = tmp_path_factory.mktemp("smoke") / "targets.json"
    command = [sys.executable, "-m", "benchmarks", "--smoke"]
    command += ["--json", str(path), "--core", str(CORE)]
    done = subprocess.run(
        command, cwd=ROOT, env=job_environment(PATIENT), capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict" in done.stdout
    document: dict[str, Any] = json.loads(path.read_text())
    return document


@needs_smoke
def test_every_suite_measures_and_every_target_has_a_verdict(smoke: dict[str, Any]) -> None:
    assert all(smoke["rows"].values())
    assert all(smoke["figures"].values())
    assert {
        *("core-2", "core-4", "tcp-gloo", "tcp-mpi", "hierarchy", "step-resnet", "step-gpt")
    } == set(smoke["rows"])
    assert {"gradients", "latency", "steady", "hierarchy-bytes", "recording"} == set(
        smoke["figures"]
    )
    assert {verdict["row"] for verdict in smoke["verdicts"]} == {
        f"A{number}" for number in (*range(1, 12), 13, 14)
    }


@needs_smoke
def test_the_core_is_measured_next_to_its_peers(smoke: dict[str, Any]) -> None:
    for suite, ranks in (("core-2", 2), ("core-4", 4)):
        rows = smoke["rows"][suite]
        assert {"bound", "mydist-engine", "mydist-private"} <= {row["impl"] for row in rows}
        assert all(row["ranks"] == ranks and row["p50_us"] > 0 for row in rows)


@needs_smoke
def test_two_cores_tell_how_far_they_were_from_each_other(smoke: dict[str, Any]) -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two ranks share the only core")
    rows = smoke["rows"]["core-2"]
    assert [(row["impl"], row["size_bytes"]) for row in rows] == [
        (entry["impl"], entry["size_bytes"]) for entry in smoke["cores"]
    ]
    assert all(entry["line_ns"] > 0 for entry in smoke["cores"])
    for row, entry in zip(rows, smoke["cores"], strict=True):
        medians = [entry["near_us"], entry["far_us"]]
        assert [entry["near_samples"] > 0, entry["far_samples"] > 0] == [
            m is not None for m in medians
        ]
        assert all(row["min_us"] <= m <= row["p99_us"] for m in medians if m is not None)


@needs_smoke
def test_a_training_step_is_measured_next_to_its_peer(smoke: dict[str, Any]) -> None:
    for suite in ("step-resnet", "step-gpt"):
        names = [row["impl"] for row in smoke["rows"][suite]]
        assert names == ["compute", "mydist-local", "ddp-gloo"]


@needs_smoke
def test_bytes_between_hosts_are_those_of_the_formula(smoke: dict[str, Any]) -> None:
    assert all(row["ranks"] == 4 for row in smoke["rows"]["hierarchy"])
    figures = smoke["figures"]["hierarchy-bytes"]
    assert figures["sent_bytes"] > 0
    assert figures["excess_bytes"] == 0


@needs_smoke
@pytest.mark.parametrize(
    ("suite", "stem"),
    [
        *(("gradients", name) for name in ("alone", "mydist", "ddp", "kept_mydist", "kept_ddp")),
        *(("latency", name) for name in ("caller", "thread")),
        *(("recording", f"{name}_{way}") for name in ("timeline", "counters") for way in WAYS),
    ],
)
def test_medians_come_with_their_spread(smoke: dict[str, Any], suite: str, stem: str) -> None:
    figures = smoke["figures"][suite]
    assert 0 < figures[f"{stem}_min_us"] <= figures[f"{stem}_us"] <= figures[f"{stem}_p99_us"]


@needs_smoke
def test_single_figures(smoke: dict[str, Any]) -> None:
    gradients, recording = smoke["figures"]["gradients"], smoke["figures"]["recording"]
    # One copy of gradients that backward makes, none of those that it adds to.
    assert gradients["copied_bytes"] == 4 * (64 * 3 * 7 * 7 + 64 + 10 * 64)
    assert gradients["kept_copied_bytes"] == 0
    assert {"messages_per_step", "idle_wakeups"} <= smoke["figures"]["steady"].keys()
    for name in ("timeline", "counters"):
        percents = [recording[f"{name}_{end}percent"] for end in ("low_", "", "high_")]
        assert percents == sorted(percents)


@pytest.mark.skipif(not CORE.exists(), reason=f"{CORE} was not built, see make bench")
@pytest.mark.parametrize("name", ["bound", "mydist-arena", "mydist-engine", "mydist-private"])
def test_the_core_benchmark_notices_wrong_results(name: str) -> None:
    command = [str(CORE), "--ranks", "2", "--effort", "1", "--sizes", "4096", "--falsify", name]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=job_environment()
    )
    assert done.returncode == 1
    assert f"{name} gave a wrong result on rank 1: element 512 of 1024" in done.stderr


@pytest.mark.deep
def test_the_jobs_for_a_gpu_run_in_host_memory(tmp_path: Path) -> None:
    if reason := missing_backends().get("gloo"):
        pytest.skip(reason)
    path = tmp_path / "targets.json"
    command = [sys.executable, "-m", "benchmarks", "--gpu", "cpu", "--smoke", "--json", str(path)]
    done = subprocess.run(
        command, cwd=ROOT, env=job_environment(PATIENT), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "IN HOST MEMORY" in done.stdout
    document = json.loads(path.read_text())
    assert {verdict["row"] for verdict in document["verdicts"]} == {"G2", "G4", "G5", "G6"}
    assert all(verdict["measured"] is not None for verdict in document["verdicts"])
    figures = document["figures"]
    assert figures["gpu-staging"]["hosts"] == 2
    assert all(figures[suite]["batches"] == 1 for suite in ("gpu-bucket", "gpu-bucket-2"))
