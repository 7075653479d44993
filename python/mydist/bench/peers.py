"""Peers that run as jobs of their own, which one process starts while nothing else runs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from mydist.bench.problem import Plan
from mydist.bench.results import Measured

# Seconds that one round of a peer may take.
_ROUND_TIMEOUT = 300.0
_C_TYPES = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int32: "int32",
    torch.int64: "int64",
}
REMOVED_PEERS = ("mydist-mpi", "mydist-gloo")  # Ignored with a warning for one release.
# Where a peer may run; the ranks of this job pin themselves later.
_CORES = os.sched_getaffinity(0)
Times = dict[tuple[str, int], Measured]  # By implementation and size in bytes.


class PeerUnavailable(Exception):
    """The peer cannot run here; the text says why."""


class SeparatePeer:
    """A program that measures as peer.h says, and is started anew in every round."""

    name: str

    def __init__(self, plan: Plan, ranks: int) -> None:
        self.plan, self.ranks = plan, ranks

    def run(self, timeout_s: float = _ROUND_TIMEOUT) -> Times:
        """One round. RuntimeError with its output when it fails."""
        raise NotImplementedError

    def _sizes(self, most_calls: int | None = None) -> list[str]:
        """ELEMENTS:SAMPLES:CALLS of every size."""
        plan = self.plan
        return [
            f"{plan.shape(size, 0, self.ranks).elements}:{plan.iterations_at(size)}"
            f":{min(plan.calls_at(size), most_calls or plan.calls_at(size))}"
            for size in plan.sizes
        ]

    def _parse(self, output: str) -> Times:
        found: dict[str, list[Measured]] = {}
        for line in output.splitlines():
            if line.startswith("result "):
                _, name, _, cpu, switches, *times = line.split()
                measured = Measured([float(us) for us in times], float(cpu), float(switches))
                found.setdefault(name, []).append(measured)
        sizes = self.plan.sizes
        if not found or any(len(results) != len(sizes) for results in found.values()):
            raise RuntimeError(f"expected a result for each of {sizes} bytes:\n{output}")
        return {
            (name, size): measured
            for name, results in found.items()
            for size, measured in zip(sizes, results, strict=True)
        }

    def _run(
        self, commands: Sequence[Sequence[str]], timeout_s: float, settings: Mapping[str, str] = {}
    ) -> Times:
        pin = {"BENCH_PIN": "1"} if self.plan.together else {}
        return self._parse(run_jobs(commands, {**settings, **pin}, timeout_s))


class _Compiled(SeparatePeer):
    """A program of this folder, compiled into a temporary folder."""

    def __init__(self, plan: Plan, ranks: int, source: str, compiler: str, *flags: str) -> None:
        super().__init__(plan, ranks)
        if plan.dtype not in _C_TYPES:
            known = ", ".join(_C_TYPES.values())
            raise PeerUnavailable(f"its program knows {known}, not {plan.dtype}")
        self._folder = tempfile.TemporaryDirectory(prefix="mydist-bench-")
        self._path = str(Path(self._folder.name) / Path(source).stem)
        path = Path(__file__).parent / source
        command = [compiler, "-std=c++20", "-O2", "-o", self._path, str(path), *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = done.stderr.strip()[-300:]
            raise PeerUnavailable(f"{compiler} could not compile {source}: {said}")

    def _arguments(self, most_calls: int | None = None) -> list[str]:
        return [self.plan.op, _C_TYPES[self.plan.dtype], *self._sizes(most_calls)]


class OpenMpi(_Compiled):
    """Open MPI, started by mpirun."""

    name = "openmpi"

    def __init__(self, plan: Plan, ranks: int) -> None:
        """Compiles. PeerUnavailable without Open MPI's compiler or for other types."""
        compiler = shutil.which("mpicxx")
        if compiler is None or shutil.which("mpirun") is None:
            raise PeerUnavailable("mpicxx and mpirun are not on PATH (Debian: libopenmpi-dev)")
        super().__init__(plan, ranks, "openmpi_peer.cc", compiler)

    def run(self, timeout_s: float = _ROUND_TIMEOUT) -> Times:
        return self._run([[*_mpirun(self.ranks), self._path, *self._arguments()]], timeout_s)


class Horovod(SeparatePeer):
    """Horovod's module for torch, in processes that mpirun starts."""

    name = "horovod"

    def __init__(self, plan: Plan, ranks: int) -> None:
        """PeerUnavailable where it is not installed."""
        super().__init__(plan, ranks)
        require_horovod()

    def run(self, timeout_s: float = _ROUND_TIMEOUT) -> Times:
        dtype = str(self.plan.dtype).removeprefix("torch.")
        command = horovod_command(self.ranks, self.plan.op, dtype, *self._sizes(most_calls=1))
        return self._run([command], timeout_s)


class Gloo(_Compiled):
    """libgloo over TCP, with no torch in it."""

    name = "gloo"

    def __init__(self, plan: Plan, ranks: int) -> None:
        """Compiles. PeerUnavailable without Gloo's headers, a compiler, or the collective."""
        if plan.op == "reducescatter":
            raise PeerUnavailable("libgloo has no reducescatter with options, only an old class")
        if ranks < 2:
            raise PeerUnavailable("it needs at least 2 ranks")
        compiler = shutil.which(_compiler())
        if compiler is None:
            raise PeerUnavailable("no C++ compiler is on PATH (Debian: g++), and none in CXX")
        super().__init__(plan, ranks, "gloo_peer.cc", compiler, "-lgloo", "-lpthread")

    def run(self, timeout_s: float = _ROUND_TIMEOUT) -> Times:
        # A call takes so long that the clock costs nothing beside it.
        arguments = self._arguments(most_calls=1)
        with tempfile.TemporaryDirectory(prefix="mydist-bench-") as store:
            ranks = [[self._path, str(r), str(self.ranks), store] for r in range(self.ranks)]
            return self._run([[*rank, *arguments] for rank in ranks], timeout_s)


class Core(SeparatePeer):
    """mydist's core in C++, and the speed of the memory: the program bench_allreduce."""

    name = "core"

    def __init__(self, plan: Plan, ranks: int, path: Path) -> None:
        """`path` is the program's."""
        super().__init__(plan, ranks)
        self._path = path

    def run(self, timeout_s: float = _ROUND_TIMEOUT) -> Times:
        command = [str(self._path), str(self.ranks), *self._sizes()]
        ours = {name: text for name, text in os.environ.items() if name.startswith("MYDIST_")}
        return self._run([command], timeout_s, ours)


_SEPARATE: dict[str, type[Gloo | OpenMpi | Horovod]] = {
    peer.name: peer for peer in (Gloo, OpenMpi, Horovod)
}
COMPILED_PEERS = (Gloo.name, OpenMpi.name)


def require_horovod() -> None:
    """Raises PeerUnavailable."""
    if importlib.util.find_spec("horovod") is None:
        raise PeerUnavailable("the Python package horovod is not installed")
    if shutil.which("mpirun") is None:
        raise PeerUnavailable("mpirun is not on PATH (Debian: openmpi-bin)")


def horovod_command(ranks: int, *words: str) -> list[str]:
    """What starts horovod_peer.py on all ranks."""
    return [*_mpirun(ranks), sys.executable, "-m", "mydist.bench.horovod_peer", *words]


def _mpirun(ranks: int) -> list[str]:
    # It makes waiting ranks yield, which costs time.
    crowded = ["--oversubscribe"] if ranks > len(_CORES) else []
    return ["mpirun", "-np", str(ranks), *crowded]


def make_peers(
    names: Sequence[str], plan: Plan, ranks: int, one_host: bool, tell: Callable[[str], object]
) -> list[SeparatePeer]:
    """Those that run as jobs of their own; tells why one of them cannot run here."""
    found: list[SeparatePeer] = []
    for name in names:
        try:
            if name in REMOVED_PEERS:
                backend = name.removeprefix("mydist-")
                raise PeerUnavailable(f"it has been removed; start mydistrun with --{backend}")
            if name != "torch-gloo":
                if not one_host:
                    raise PeerUnavailable("it is started on one host only")
                found.append(_SEPARATE[name](plan, ranks))
        except PeerUnavailable as error:
            tell(f"without {name}: {error}")
    return found


def _compiler() -> str:
    """The first word of CXX, else of what Python was built with, else c++."""
    named = os.environ.get("CXX") or sysconfig.get_config_var("CXX") or "c++"
    first = str(named).split()[0]
    return first if shutil.which(first) else "c++"


def run_jobs(commands: Sequence[Sequence[str]], more: dict[str, str], timeout_s: float) -> str:
    """Output of the first of these processes, which run together and apart from our job."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        with _on_all_cores():
            processes = [
                subprocess.Popen(
                    list(command),
                    env={**_foreign_environment(), **more},
                    stdin=subprocess.DEVNULL,
                    stdout=output if index == 0 else subprocess.DEVNULL,
                    stderr=errors,
                )
                for index, command in enumerate(commands)
            ]
        end = time.monotonic() + timeout_s
        try:  # Until all have ended, or one that the others wait for has failed.
            while None in (codes := [process.poll() for process in processes]):
                if any(codes) or time.monotonic() > end:
                    break
                time.sleep(0.05)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        output.seek(0)
        said = output.read()
        if codes != [0] * len(codes):
            errors.seek(0)
            failed = any(codes)
            what = f"exit codes {codes} of" if failed else f"not done after {timeout_s:.0f} s"
            raise RuntimeError(f"{what}: {' '.join(commands[0])}\n{said}{errors.read()}")
    return said


@contextmanager
def _on_all_cores() -> Iterator[None]:
    """Processes started meanwhile are not pinned to the core of the calling thread."""
    own = os.sched_getaffinity(0)
    os.sched_setaffinity(0, _CORES)
    try:
        yield
    finally:
        os.sched_setaffinity(0, own)


def _foreign_environment() -> dict[str, str]:
    """Ours, without what would make a job take itself for a part of ours."""
    foreign = ("MYDIST_", "OMPI_", "PMIX_", "PRTE_")
    kept = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "OMPI_MCA_btl")
    ours = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK")
    return {
        name: value
        for name, value in os.environ.items()
        if name in kept or not (name.startswith(foreign) or name in ours)
    }
