"""Peers: other implementations to compare with, inside this job or as jobs of their own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed

import mydist as md

# Seconds that one round of a separate peer may take.
_ROUND_TIMEOUT = 300.0


class PeerUnavailable(Exception):
    """The peer cannot run here; the text says why."""


class TorchGloo:
    """torch.distributed with its gloo backend, in the processes of this job."""

    name = "torch-gloo"

    def __init__(self) -> None:
        """Connects; collective over all ranks."""
        address, port = socket.gethostbyname(socket.gethostname()), 0
        if md.local_size() == md.size():
            address = "127.0.0.1"
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if md.rank() == 0:
            with socket.socket() as probe:
                probe.bind((address, 0))
                port = probe.getsockname()[1]
        address, port = md.broadcast_object((address, port), 0, name="bench.torch_gloo")
        torch.distributed.init_process_group(
            "gloo", init_method=f"tcp://{address}:{port}", rank=md.rank(), world_size=md.size()
        )

    def allreduce(self, buffer: torch.Tensor) -> None:
        """Sums `buffer` over all ranks, in place. Blocking."""
        torch.distributed.all_reduce(buffer)

    def barrier(self) -> None:
        """Returns when all ranks have called it."""
        torch.distributed.barrier()


class SeparatePeer(Protocol):
    """A peer that rank 0 starts anew in every round, while the ranks of this job wait."""

    name: str

    def run(
        self, sizes: Sequence[int], iterations_at: Callable[[int], int]
    ) -> dict[int, list[float]]:
        """Microseconds of the slowest rank per iteration, by size in bytes."""


class OpenMpi:
    """MPI_Allreduce of Open MPI in a plain C program, compiled here and started by mpirun."""

    name = "openmpi"
    _MPI_TYPES = {
        torch.float32: "float32",
        torch.float64: "float64",
        torch.int32: "int32",
        torch.int64: "int64",
    }

    def __init__(self, dtype: torch.dtype, ranks: int) -> None:
        """Compiles the program. PeerUnavailable without Open MPI's compiler or for other types."""
        if dtype not in self._MPI_TYPES:
            raise PeerUnavailable(f"MPI has no type for {dtype}")
        compiler = shutil.which("mpicc")
        if compiler is None or shutil.which("mpirun") is None:
            raise PeerUnavailable("mpicc and mpirun are not on PATH (Debian: libopenmpi-dev)")
        self._dtype, self._ranks = dtype, ranks
        self._folder = tempfile.TemporaryDirectory(prefix="mydist-bench-")
        self._program = Path(self._folder.name) / "openmpi_allreduce"
        source = Path(__file__).parent / "openmpi_allreduce.c"
        command = [compiler, "-O2", "-std=c11", "-o", str(self._program), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerUnavailable(f"mpicc failed: {done.stderr.strip()[-300:]}")

    def run(
        self, sizes: Sequence[int], iterations_at: Callable[[int], int]
    ) -> dict[int, list[float]]:
        """See SeparatePeer."""
        pairs = [f"{max(1, size // self._dtype.itemsize)}:{iterations_at(size)}" for size in sizes]
        command = ["mpirun", "-np", str(self._ranks)]
        if self._ranks > (os.cpu_count() or 1):  # It makes waiting ranks yield, which costs time.
            command.append("--oversubscribe")
        program = [str(self._program), self._MPI_TYPES[self._dtype], *pairs]
        output = _run_job([*command, *program])
        lines = [line.split() for line in output.splitlines() if line.startswith("times ")]
        if len(lines) != len(sizes):
            raise RuntimeError(f"the Open MPI program printed no times:\n{output}")
        return {size: [float(v) for v in line[2:]] for size, line in zip(sizes, lines, strict=True)}


class OtherMydist:
    """mydist over its other backend, in a job of its own."""

    def __init__(self, backend: str, dtype: torch.dtype, ranks: int) -> None:
        """`backend` is "mpi" or "gloo". PeerUnavailable when it was not built."""
        self.name = f"mydist-{backend}"
        if not {"mpi": md.mpi_built, "gloo": md.gloo_built}[backend]():
            raise PeerUnavailable(
                f"the {backend} backend is not built, see mydistrun --check-build"
            )
        self._backend, self._dtype, self._ranks = backend, dtype, ranks

    def run(
        self, sizes: Sequence[int], iterations_at: Callable[[int], int]
    ) -> dict[int, list[float]]:
        """See SeparatePeer."""
        found: dict[int, list[float]] = {}
        launcher = [sys.executable, "-m", "mydist.launcher", "-np", str(self._ranks)]
        with tempfile.TemporaryDirectory(prefix="mydist-bench-") as folder:
            path = Path(folder) / "times"
            pairs = [f"{size}:{iterations_at(size)}" for size in sizes]
            _run_job(
                [*launcher, f"--{self._backend}", sys.executable, "-m", "mydist.bench.times"]
                + [str(path), str(self._dtype).removeprefix("torch."), *pairs]
            )
            for size, line in zip(sizes, path.read_text().splitlines(), strict=True):
                found[size] = [float(value) for value in line.split()]
        return found


def _run_job(command: Sequence[str]) -> str:
    """Output of a job that must not take itself for a part of ours."""
    foreign = ("MYDIST_", "OMPI_", "PMIX_", "PRTE_")
    kept = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith(foreign)
    }
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK"):
        environment.pop(name, None)
    done = subprocess.run(
        list(command),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_ROUND_TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(
            f"exit code {done.returncode} of: {' '.join(command)}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def close_torch_gloo() -> None:
    """Leaves torch's process group, if there is one."""
    with suppress(AssertionError, ValueError):
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
