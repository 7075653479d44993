"""Peers that run as jobs of their own, which rank 0 starts while the ranks of this job wait."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

import mydist as md
from mydist.bench.problem import Shape
from mydist.bench.results import Measured

# Seconds that one round of a peer may take.
_ROUND_TIMEOUT = 300.0
_C_TYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int32: "int32",
    torch.int64: "int64",
}
# Where a peer may run; the ranks of this job pin themselves later.
_CORES = os.sched_getaffinity(0)


class PeerUnavailable(Exception):
    """The peer cannot run here; the text says why."""


class SeparatePeer(Protocol):
    """A peer that rank 0 starts anew in every round, while the ranks of this job wait."""

    name: str

    def run(
        self, op: str, sizes: Sequence[int], iterations_at: Callable[[int], int]
    ) -> dict[int, Measured]:
        """One round, by size in bytes. RuntimeError with its output when it fails."""


class _Program:
    """A program of this folder, compiled into a temporary folder."""

    def __init__(self, source: str, dtype: torch.dtype, ranks: int) -> None:
        if dtype not in _C_TYPES:
            raise PeerUnavailable(f"its program knows {', '.join(_C_TYPES.values())}, not {dtype}")
        self.folder = tempfile.TemporaryDirectory(prefix="mydist-bench-")
        self.path = Path(self.folder.name) / Path(source).stem
        self.dtype, self.ranks = dtype, ranks
        self._source = Path(__file__).parent / source

    def compile(self, compiler: str, *flags: str) -> None:
        """PeerUnavailable with what the compiler said."""
        command = [compiler, "-O2", "-o", str(self.path), str(self._source), *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = done.stderr.strip()[-300:]
            raise PeerUnavailable(f"{compiler} could not compile {self._source.name}: {said}")

    def arguments(
        self, op: str, sizes: Sequence[int], iterations_at: Callable[[int], int]
    ) -> list[str]:
        """OP TYPE ELEMENTS:ITERATIONS …"""
        elements = [Shape(op, self.dtype, size, 0, self.ranks).elements for size in sizes]
        pairs = [f"{n}:{iterations_at(s)}" for n, s in zip(elements, sizes, strict=True)]
        return [op, _C_TYPES[self.dtype], *pairs]


class OpenMpi:
    """Open MPI in a plain C program, compiled here and started by mpirun."""

    name = "openmpi"

    def __init__(self, op: str, dtype: torch.dtype, ranks: int) -> None:
        """Compiles. PeerUnavailable without Open MPI's compiler or for other types."""
        compiler = shutil.which("mpicc")
        if compiler is None or shutil.which("mpirun") is None:
            raise PeerUnavailable("mpicc and mpirun are not on PATH (Debian: libopenmpi-dev)")
        self._program = _Program("openmpi_peer.c", dtype, ranks)
        self._program.compile(compiler, "-std=c11")

    def run(
        self, op: str, sizes: Sequence[int], iterations_at: Callable[[int], int]
    ) -> dict[int, Measured]:
        """See SeparatePeer."""
        ranks = self._program.ranks
        command = ["mpirun", "-np", str(ranks)]
        if ranks > len(_CORES):  # It makes waiting ranks yield, which costs time.
            command.append("--oversubscribe")
        arguments = self._program.arguments(op, sizes, iterations_at)
        return _parse(_run_jobs([[*command, str(self._program.path), *arguments]]), sizes)


class Gloo:
    """libgloo over TCP in a plain C++ program, compiled here; no torch in it."""

    name = "gloo"

    def __init__(self, op: str, dtype: torch.dtype, ranks: int) -> None:
        """Compiles. PeerUnavailable without Gloo's headers, a compiler, or the collective."""
        if op == "reducescatter":
            raise PeerUnavailable("libgloo has no reducescatter with options, only an old class")
        if ranks < 2:
            raise PeerUnavailable("it needs at least 2 ranks")
        compiler = shutil.which(_compiler())
        if compiler is None:
            raise PeerUnavailable("no C++ compiler is on PATH (Debian: g++), and none in CXX")
        self._program = _Program("gloo_peer.cc", dtype, ranks)
        self._program.compile(compiler, "-std=c++17", "-lgloo", "-lpthread")

    def run(
        self, op: str, sizes: Sequence[int], iterations_at: Callable[[int], int]
    ) -> dict[int, Measured]:
        """See SeparatePeer."""
        ranks = self._program.ranks
        arguments = self._program.arguments(op, sizes, iterations_at)
        with tempfile.TemporaryDirectory(prefix="mydist-bench-") as store:
            program = str(self._program.path)
            commands = [[program, str(r), str(ranks), store, *arguments] for r in range(ranks)]
            return _parse(_run_jobs(commands), sizes)


def _compiler() -> str:
    """The first word of CXX, else of what Python was built with, else c++."""
    named = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++"
    first = str(named).split()[0]
    return first if shutil.which(first) else "c++"


class OtherMydist:
    """mydist over another backend, in a job of its own."""

    def __init__(self, backend: str, dtype: torch.dtype, ranks: int) -> None:
        """`backend` is "mpi" or "gloo". PeerUnavailable when it was not built."""
        self.name = f"mydist-{backend}"
        if not {"mpi": md.mpi_built, "gloo": md.gloo_built}[backend]():
            raise PeerUnavailable(
                f"the {backend} backend is not built, see mydistrun --check-build"
            )
        self._backend, self._dtype, self._ranks = backend, dtype, ranks

    def run(
        self, op: str, sizes: Sequence[int], iterations_at: Callable[[int], int]
    ) -> dict[int, Measured]:
        """See SeparatePeer."""
        launcher = [sys.executable, "-m", "mydist.launcher", "-np", str(self._ranks)]
        with tempfile.TemporaryDirectory(prefix="mydist-bench-") as folder:
            path = Path(folder) / "times"
            pairs = [f"{size}:{iterations_at(size)}" for size in sizes]
            dtype = str(self._dtype).removeprefix("torch.")
            program = [sys.executable, "-m", "mydist.bench.times", str(path), op, dtype, *pairs]
            _run_jobs([[*launcher, f"--{self._backend}", *program]])
            lines = [[float(v) for v in line.split()] for line in path.read_text().splitlines()]
        return {s: Measured(v[2:], v[0], v[1]) for s, v in zip(sizes, lines, strict=True)}


def _parse(output: str, sizes: Sequence[int]) -> dict[int, Measured]:
    lines = [line.split() for line in output.splitlines() if line.startswith("result ")]
    if len(lines) != len(sizes):
        raise RuntimeError(f"a peer printed {len(lines)} results, expected {len(sizes)}:\n{output}")
    found = {}
    for size, line in zip(sizes, lines, strict=True):
        cpu, switches, *times = (float(value) for value in line[2:])
        found[size] = Measured(times, cpu, switches)
    return found


def _run_jobs(commands: Sequence[Sequence[str]]) -> str:
    """Output of the first of these processes, which run together and apart from our job."""
    with tempfile.TemporaryFile("w+") as errors:
        with _on_all_cores():
            processes = [
                subprocess.Popen(
                    list(command),
                    env=_foreign_environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE if index == 0 else subprocess.DEVNULL,
                    stderr=errors,
                    text=True,
                )
                for index, command in enumerate(commands)
            ]
        try:
            output, _ = processes[0].communicate(timeout=_ROUND_TIMEOUT)
            codes = [process.wait(timeout=_ROUND_TIMEOUT) for process in processes]
        finally:
            for process in processes:
                process.kill()
                process.wait()
        if any(codes):
            errors.seek(0)
            raise RuntimeError(
                f"exit codes {codes} of: {' '.join(commands[0])}\n{output}{errors.read()}"
            )
    return output


@contextmanager
def _on_all_cores() -> Iterator[None]:
    """Processes started meanwhile are not pinned to the core of the calling thread."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _CORES)
    yield
    os.sched_setaffinity(0, own)


def _foreign_environment() -> dict[str, str]:
    """Ours, without what would make a job take itself for a part of ours."""
    foreign = ("MYDIST_", "OMPI_", "PMIX_", "PRTE_")
    kept = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_btl")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(foreign)
    }
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"):
        environment.pop(name, None)
    return environment
