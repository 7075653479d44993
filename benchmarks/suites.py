"""Suites: the jobs that measure, each started as a user would start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

import mydist as md
from mydist.bench.contest import add, make_rows
from mydist.bench.devices import why_no_gpu
from mydist.bench.peers import Core, Times, make_peers
from mydist.bench.problem import Plan
from mydist.bench.results import read_json

from . import targets as t
from .results import Results

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


Suite = Callable[[str, Setting, Results], None]


def _core(ranks: int, sizes: Sequence[int]) -> Suite:
    """The core in C++ next to its peers; another one begins in every round."""

    def run(name: str, setting: Setting, results: Results) -> None:
        if not setting.core.exists():
            raise SuiteFailed(f"{setting.core} does not exist; build it: make bench")
        end = time.monotonic() + setting.timeout_s
        used, rounds = (sizes[:2], 2) if setting.smoke else (sizes, 5)
        iterations = 2 if setting.smoke else None
        plan = Plan("allreduce", used, torch.float32, rounds, iterations, together=True)
        absent: list[str] = []
        core = Core(plan, ranks, setting.core)
        peers = [core, *make_peers(("openmpi", "gloo"), plan, ranks, True, absent.append)]
        found: Times = {}
        for index in range(rounds):
            for peer in (peers * 2)[index % len(peers) :][: len(peers)]:
                try:
                    add(found, peer.run(max(1.0, end - time.monotonic())))
                except RuntimeError as error:
                    raise SuiteFailed(str(error)) from None
        results.rows[name] = make_rows(plan, ranks, found, found)
        if absent:
            results.reasons[name] = "; ".join(absent)

    return run


def _bench(ranks: int, arguments: Sequence[str], *flags: str, **variables: str) -> Suite:
    """A run of python -m mydist.bench, with flags of mydistrun."""

    def run(name: str, setting: Setting, results: Results) -> None:
        path = setting.folder / f"{name}.json"
        filled = list(arguments)
        if filled[0] != "step":
            filled += ["--sizes", "64" if setting.smoke else "8,64K,4M,64M"]
        if setting.smoke:
            filled += ["--rounds", "1"]
            filled += ["--steps", "2"] if arguments[0] == "step" else ["--iterations", "2"]
        program = [sys.executable, "-m", "mydist.bench", *filled, "--json", str(path)]
        output = _launch(ranks, [*flags, *program], setting, variables)
        results.rows[name] = read_json(path)
        _note_absent(name, output, results)

    return run


def _job(
    ranks: int,
    on_gpu: bool = False,
    between_hosts: bool = False,
    servers: int = 0,
    needs_rules: bool = False,
    **more: str,
) -> Suite:
    """A job of jobs/; one on a GPU has a reason without it. `between_hosts`: over Gloo, if built.

    `servers` are processes beside the ranks, for tables of md.ps; `needs_rules`: it has rules of
    tables in its own process. The variables `more` are set. A job has the name of its suite, but
    for the number of its ranks.
    """

    def run(name: str, setting: Setting, results: Results) -> None:
        if on_gpu and setting.device == "cuda" and (reason := why_no_gpu()):
            results.reasons[name] = reason
            return
        if (servers or needs_rules) and find_spec("mydist._ps") is None:
            results.reasons[name] = "this mydist was built without the parameter server"
            return
        path = setting.folder / f"{name}.json"
        program = [sys.executable, "-m", "benchmarks.jobs", name.removesuffix("-2"), str(path)]
        program += ["--gpu"] if on_gpu and setting.device == "cuda" else []
        program += ["--smoke"] if setting.smoke else []
        flags = ["--gloo"] if between_hosts and md.gloo_built() else []
        flags += ["--servers", str(servers)] if servers else []
        output = _launch(ranks, flags + program, setting, more)
        results.figures[name] = json.loads(path.read_text())
        _note_absent(name, output, results)

    return run


def _note_absent(name: str, output: str, results: Results) -> None:
    """Programs say "without PEER: reason" of a peer that cannot run here."""
    absent = [line[line.index("without ") :] for line in output.splitlines() if "without " in line]
    if absent:
        results.reasons[name] = "; ".join(absent)


def _launch(
    ranks: int, arguments: Sequence[str], setting: Setting, variables: Mapping[str, str]
) -> str:
    """What the job prints."""
    command = [sys.executable, "-m", "mydist.launcher", "-np", str(ranks), *arguments]
    usual = {"OMP_NUM_THREADS": "1", "MYDIST_SHARED_MEMORY": "1", **os.environ}
    try:
        done = subprocess.run(
            command,
            env={**usual, **variables},
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
    return f"{done.stderr}\n{done.stdout}"


_TWO_HOSTS = ("allreduce", "--fake-hosts", "2", "--peers")
SUITES: dict[str, Suite] = {
    t.CORE2: _core(2, _SIZES2),
    t.CORE4: _core(4, _SIZES4),
    t.GRADIENTS: _job(2),
    t.LATENCY: _job(2),
    t.STEADY: _job(2),
    t.TCP_GLOO: _bench(2, (*_TWO_HOSTS, "gloo"), "--gloo"),
    t.TCP_MPI: _bench(2, (*_TWO_HOSTS, "openmpi"), "--mpi", OMPI_MCA_btl="self,tcp"),
    t.HIERARCHY: _bench(4, (*_TWO_HOSTS, "gloo"), "--gloo"),
    t.HIERARCHY_BYTES: _job(4),
    t.STEP_RESNET: _bench(2, ("step", "--model", "resnet", "--batch", "8")),
    t.STEP_GPT: _bench(2, ("step", "--model", "gpt", "--batch", "4")),
    t.GPU_SLOTS: _job(1, on_gpu=True),
    t.GPU_SLOTS2: _job(2, on_gpu=True),
    t.GPU_STAGING: _job(2, on_gpu=True, between_hosts=True),
    t.GPU_OVERHEAD: _job(1, on_gpu=True),
    t.GPU_BUCKET: _job(1, on_gpu=True, MYDIST_FREEZE_AFTER="2"),
    t.GPU_BUCKET2: _job(2, on_gpu=True, MYDIST_FREEZE_AFTER="2"),
    t.SERVERS: _job(2, servers=1),
    t.SERVERS_TCP: _job(2, servers=1, MYDIST_SHARED_MEMORY="0"),
    t.SERVER_ROWS: _job(2, servers=1),
    t.SERVER_RULES: _job(1, needs_rules=True),
    t.STRAGGLERS: _job(8, servers=1),
    t.SHARDED: _job(2),
    t.RECORDING: _job(2, MYDIST_FREEZE_AFTER="2"),
}
