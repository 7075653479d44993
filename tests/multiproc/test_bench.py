"""The benchmark commands run, check their results and write their rows; no figure is judged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from multiproc.job import TESTS, job_environment, launch

ROOT = TESTS.parent
# On a busy machine the ranks wait long for a peer that is compiled and started.
PATIENT = {"MYDIST_STALL_SHUTDOWN_SECONDS": "0"}
SEPARATE = ("openmpi", "gloo")
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

EVERY_JOB = """
from pathlib import Path
import sys
import mydist as md
from benchmarks.jobs import gradients, latency, steady_state, timeline_cost
from benchmarks.jobs.figures import parse_arguments, write_figures
from mydist.bench.implementations import close_torch_gloo
arguments = parse_arguments()
md.init()
found = {
    **gradients.measure(arguments), **latency.measure(arguments),
    **steady_state.measure(arguments), **timeline_cost.measure(arguments, arguments.path.parent),
}
write_figures(arguments, found)
close_torch_gloo()
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
    there = ["mydist-gloo", "torch-gloo", *(peer for peer in SEPARATE if peer not in named)]
    assert [(r["impl"], r["size_bytes"], r["iterations"]) for r in rows] == [
        (impl, size, 6) for size in (8, 64 << 10) for impl in there
    ]
    assert all(0 < r["min_us"] <= r["p50_us"] <= r["p99_us"] for r in rows)
    assert all(r["context_switches"] >= 0 and r["cpu_seconds_per_gb"] > 0 for r in rows)
    assert all(r["bound_us"] > 0 for r in rows if r["size_bytes"] > 8)
    assert "busbw" in outcome.output


def test_every_collective_gives_right_results() -> None:
    outcome = launch(3, "gloo", "-c", EVERY_COLLECTIVE, timeout=120).expect_success()
    for op in ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter", "barrier"):
        assert f"{op} " in outcome.output


@pytest.mark.parametrize("backend", ["gloo", "mpi"])
def test_pretended_hosts_are_hosts_under_every_launcher(backend: str) -> None:
    outcome = launch(2, backend, "-c", PRETENDED_HOSTS).expect_success()
    assert outcome.output.count("hosts 2") == 2, outcome.output


def test_a_wrong_result_ends_the_benchmark() -> None:
    command = ["-m", "mydist.bench", "allgather", "--sizes", "64", "--falsify", "mydist-gloo"]
    outcome = launch(2, "gloo", *command)
    assert outcome.code != 0
    assert "mydist-gloo: allgather of 64 bytes gave a wrong result on rank 1" in outcome.output


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


def test_a_training_step() -> None:
    command = ["-m", "mydist.bench", "step", "--model", "resnet"]
    command += ["--rounds", "1", "--steps", "2", "--batch", "2"]
    outcome = launch(2, "gloo", *command).expect_success()
    assert all(name in outcome.output for name in ("compute", "mydist-gloo", "ddp-gloo"))


def run_benchmarks(folder: Path, rows: str) -> dict[str, object]:
    """What `python -m benchmarks --smoke` wrote."""
    path = folder / "targets.json"
    command = [sys.executable, "-m", "benchmarks", "--smoke", "--only", rows]
    command += ["--json", str(path), "--core", str(CORE)]
    done = subprocess.run(
        command, cwd=ROOT, env=job_environment(PATIENT), capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "verdict" in done.stdout
    document: dict[str, object] = json.loads(path.read_text())
    return document


def test_jobs_of_the_targets_run(tmp_path: Path) -> None:
    environment = {**PATIENT, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"}
    path = str(tmp_path / "figures.json")
    launch(
        2, "gloo", "-c", EVERY_JOB, path, "--smoke", timeout=120, env=environment
    ).expect_success()
    figures = json.loads(Path(path).read_text())
    assert figures["mydist_us"] > 0
    assert figures["ddp_us"] > 0
    assert 0 < figures["caller_min_us"] <= figures["caller_us"]
    assert 0 < figures["thread_min_us"] <= figures["thread_us"]
    assert {"messages_per_step", "idle_wakeups"} <= figures.keys()
    assert figures["on_us"] > 0


def test_targets_and_verdicts_are_written(tmp_path: Path) -> None:
    document = run_benchmarks(tmp_path, "A11")
    rows, figures = document["rows"], document["figures"]
    assert isinstance(rows, dict)
    assert isinstance(figures, dict)
    assert all(row["ranks"] == 4 for row in rows["hierarchy"])
    assert figures["hierarchy-bytes"]["sent_bytes"] > 0
    assert figures["hierarchy-bytes"]["excess_bytes"] == 0
    verdicts = document["verdicts"]
    assert isinstance(verdicts, list)
    assert {verdict["row"] for verdict in verdicts} == {"A11"}


@pytest.mark.skipif(not CORE.exists(), reason=f"{CORE} was not built, see make bench")
def test_the_core_is_measured_next_to_its_peers(tmp_path: Path) -> None:
    document = run_benchmarks(tmp_path, "A1,A6")
    rows = document["rows"]
    assert isinstance(rows, dict)
    for suite, ranks in (("core-2", 2), ("core-4", 4)):
        names = {row["impl"] for row in rows[suite]}
        assert {"bound", "mydist-private"} <= names
        assert all(row["ranks"] == ranks and row["p50_us"] > 0 for row in rows[suite])


@pytest.mark.skipif(not CORE.exists(), reason=f"{CORE} was not built, see make bench")
@pytest.mark.parametrize("name", ["bound", "mydist-arena", "mydist-private"])
def test_the_core_benchmark_notices_wrong_results(name: str) -> None:
    command = [str(CORE), "--ranks", "2", "--effort", "1", "--sizes", "4096", "--falsify", name]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=job_environment()
    )
    assert done.returncode == 1
    assert f"{name} gave a wrong result on rank 1: element 512 of 1024" in done.stderr
