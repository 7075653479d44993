"""Suites: the jobs that measure, each started as a user would start it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mydist as md
from mydist.bench.devices import why_no_gpu
from mydist.bench.results import Row, read_json

from . import targets as t
from .results import Cores, Results

ROOT = Path(__file__).resolve().parent.parent
_SIZES2 = (8, 64, 1 * t.K, 8 * t.K, 64 * t.K, 1 * t.M, 4 * t.M, 16 * t.M, 64 * t.M)
_SIZES4 = (8, 8 * t.K, 4 * t.M, 64 * t.M)


class SuiteFailed(Exception):
    """A job of a suite ended with an error; the text is its output."""


@dataclass(frozen=True)
class Setting:
    """How the suites are run."""

    core: Path  # The program bench_allreduce.
    folder: Path  # For files of the jobs.
    smoke: bool = False  # As small as can be: shows that everything runs, measures nothing.
    timeout_s: float = 1800.0  # Of one that hangs: several times what a slow machine takes.
    device: str = "cuda"  # Of the jobs that are about GPUs; "cpu" shows that they run.


Suite = Callable[[Setting, Results], None]


def _core(name: str, ranks: int, sizes: Sequence[int]) -> Suite:
    def run(setting: Setting, results: Results) -> None:
        if not setting.core.exists():
            raise SuiteFailed(f"{setting.core} does not exist; build it: make bench")
        arguments = ["--rounds", "2" if setting.smoke else "5"]
        arguments += ["--effort", "1" if setting.smoke else "100"]
        used = sizes[:2] if setting.smoke else sizes
        arguments += ["--sizes", ",".join(str(size) for size in used)]
        command = [str(setting.core), *arguments, "--ranks", str(ranks)]
        if shutil.which("mpirun"):
            crowded = ["--oversubscribe"] if ranks > len(os.sched_getaffinity(0)) else []
            command = ["mpirun", "-np", str(ranks), *crowded, "--bind-to", "none", *command]
        done = _run(command, setting)
        results.rows[name] = []
        for row in json.loads(done.stdout):
            cores = row.pop("cores", None)  # Where each rank had one of its own.
            results.rows[name].append(Row(**row))
            if cores is not None:
                results.cores.append(Cores(row["impl"], row["size_bytes"], **cores))
        _note_absent(name, done, results)

    return run


def _bench(name: str, ranks: int, arguments: Sequence[str], **more: str) -> Suite:
    """A run of python -m mydist.bench.

    `more`: flags of mydistrun, whose values are empty, and variables, whose values are not.
    """
    variables = {key: value for key, value in more.items() if value}
    launcher = [f"--{key}" for key, value in more.items() if not value]

    def run(setting: Setting, results: Results) -> None:
        path = setting.folder / f"{name}.json"
        sizes = "64" if setting.smoke else "8,64K,4M,64M"
        filled = [sizes if a == "SIZES" else a for a in arguments]
        if setting.smoke:
            filled += ["--rounds", "1"]
            filled += ["--steps", "2"] if arguments[0] == "step" else ["--iterations", "2"]
        program = ["-m", "mydist.bench", *filled, "--json", str(path)]
        done = _launch(ranks, [*launcher, sys.executable, *program], setting, variables)
        results.rows[name] = read_json(path)
        _note_absent(name, done, results)

    return run


def _note_absent(name: str, done: subprocess.CompletedProcess[str], results: Results) -> None:
    """Both programs say "without PEER: reason" of a peer that cannot run here."""
    lines = done.stderr.splitlines() + done.stdout.splitlines()
    absent = [line[line.index("without ") :] for line in lines if "without " in line]
    if absent:
        results.reasons[name] = "; ".join(absent)


def _job(name: str, ranks: int, module: str, **variables: str) -> Suite:
    """A module of jobs/, which writes its figures to the file that it is given."""

    def run(setting: Setting, results: Results) -> None:
        path = setting.folder / f"{name}.json"
        program = [sys.executable, "-m", f"benchmarks.jobs.{module}", str(path)]
        _launch(ranks, program + (["--smoke"] if setting.smoke else []), setting, variables)
        results.figures[name] = json.loads(path.read_text())

    return run


def _gpu_job(
    name: str, ranks: int, module: str, between_hosts: bool = False, **variables: str
) -> Suite:
    """The same on a GPU; without one it has a reason. `between_hosts`: over Gloo, if it can."""

    def run(setting: Setting, results: Results) -> None:
        reason = why_no_gpu() if setting.device == "cuda" else ""
        if reason:
            results.reasons[name] = reason
            return
        path = setting.folder / f"{name}.json"
        program = [sys.executable, "-m", f"benchmarks.jobs.{module}", str(path)]
        program += ["--gpu"] if setting.device == "cuda" else []
        program += ["--smoke"] if setting.smoke else []
        launcher = ["--gloo"] if between_hosts and md.gloo_built() else []
        done = _launch(ranks, launcher + program, setting, variables)
        results.figures[name] = json.loads(path.read_text())
        _note_absent(name, done, results)

    return run


def _launch(
    ranks: int,
    command: Sequence[str],
    setting: Setting,
    variables: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "mydist.launcher", "-np", str(ranks)]
    return _run([*launcher, *command], setting, variables)


def _run(
    command: Sequence[str], setting: Setting, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {"OMP_NUM_THREADS": "1", "MYDIST_SHARED_MEMORY": "1", **os.environ}
    try:
        done = subprocess.run(
            list(command),
            env={**environment, **(variables or {})},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=setting.timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise SuiteFailed(f"not done after {error.timeout:.0f} s: {' '.join(command)}") from None
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise SuiteFailed(f"exit code {done.returncode} of: {' '.join(command)}\n{tail}")
    return done


_ALLREDUCE = ("allreduce", "--sizes", "SIZES")
SUITES: dict[str, Suite] = {
    t.CORE2: _core(t.CORE2, 2, _SIZES2),
    t.CORE4: _core(t.CORE4, 4, _SIZES4),
    t.GRADIENTS: _job(t.GRADIENTS, 2, "gradients"),
    t.LATENCY: _job(t.LATENCY, 2, "latency"),
    t.STEADY: _job(t.STEADY, 2, "steady_state"),
    t.TCP_GLOO: _bench(
        t.TCP_GLOO, 2, (*_ALLREDUCE, "--fake-hosts", "2", "--peers", "gloo"), gloo=""
    ),
    t.TCP_MPI: _bench(
        t.TCP_MPI,
        2,
        (*_ALLREDUCE, "--fake-hosts", "2", "--peers", "openmpi"),
        mpi="",
        OMPI_MCA_btl="self,tcp",
    ),
    t.HIERARCHY: _bench(
        t.HIERARCHY, 4, (*_ALLREDUCE, "--fake-hosts", "2", "--peers", "gloo"), gloo=""
    ),
    t.HIERARCHY_BYTES: _job(t.HIERARCHY_BYTES, 4, "hierarchy_bytes"),
    t.STEP_RESNET: _bench(t.STEP_RESNET, 2, ("step", "--model", "resnet", "--batch", "8")),
    t.STEP_GPT: _bench(t.STEP_GPT, 2, ("step", "--model", "gpt", "--batch", "4")),
    t.GPU_SLOTS: _gpu_job(t.GPU_SLOTS, 1, "gpu_slots"),
    t.GPU_SLOTS2: _gpu_job(t.GPU_SLOTS2, 2, "gpu_slots"),
    t.GPU_STAGING: _gpu_job(t.GPU_STAGING, 2, "gpu_staging", between_hosts=True),
    t.GPU_OVERHEAD: _gpu_job(t.GPU_OVERHEAD, 1, "gpu_overhead"),
    t.GPU_BUCKET: _gpu_job(t.GPU_BUCKET, 1, "gpu_bucket", MYDIST_FREEZE_AFTER="2"),
    t.GPU_BUCKET2: _gpu_job(t.GPU_BUCKET2, 2, "gpu_bucket", MYDIST_FREEZE_AFTER="2"),
    t.RECORDING: _job(t.RECORDING, 2, "recording_cost", MYDIST_FREEZE_AFTER="2"),
}
