"""How this process was started: which rank it is, over what it talks, and how the ranks first meet.

Looked at in this order: mydistrun, Open MPI's mpirun, torchrun (and whatever else sets RANK and
WORLD_SIZE), other launchers that would need support of their own, plain python (one rank).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..errors import MydistError
from .build_report import transport_names
from .meeting import launcher_exchange, store_exchange

Exchange = Callable[[bytes], list[bytes]]

_MYDISTRUN = (
    "MYDIST_RANK",
    "MYDIST_SIZE",
    "MYDIST_RENDEZVOUS",
    "MYDIST_JOB_ID",
    "MYDIST_JOB_KEY_FD",
)
_TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")


def _nothing() -> None:
    """For a start that leaves nothing open."""


@dataclass(frozen=True)
class LaunchContext:
    """What init() needs to know. `size` 0 and `rank` -1: MPI itself will tell."""

    rank: int
    size: int
    backend: str  # The name of a transport, or "auto": the ranks choose when they have met.
    # Gives every rank's bytes to every rank; one call per round. None when there is no need.
    exchange: Exchange | None = None
    # Called when init() is over; closes what `exchange` used.
    close: Callable[[], None] = _nothing
    rank_ends: int = -1  # The descriptor by which mydistrun tells how ranks have ended; -1: none.


@dataclass(frozen=True)
class _Attempt:
    """One init(): which one it is of those ranks."""

    generation: int  # Of the same ranks, counted from 1.
    members: tuple[int, ...] | None  # The launched ranks that form the job; None: all.

    def seat(self, rank: int, size: int) -> tuple[int, int]:
        """The rank and size in the job of a process launched as `rank` of `size`."""
        if self.members is None:
            return rank, size
        return self.members.index(rank), len(self.members)

    def label(self) -> str:
        """Names its meetings; short, and different from those of other ranks and attempts."""
        if self.members is None:
            return str(self.generation)
        ranks = ",".join(map(str, self.members)).encode()
        return f"{hashlib.sha256(ranks).hexdigest()[:16]}.{self.generation}"


def launched_as(environment: Mapping[str, str] = os.environ) -> tuple[int, int] | None:
    """The rank and size that the launcher gave this process; (0, 1) without one.

    None when MPI itself has yet to tell.

    Raises ValueError when a variable is malformed, or missing while its companion is set.
    """
    for names, launcher in (
        (_MYDISTRUN[:2], "mydistrun"),
        (_OPEN_MPI, "Open MPI's mpirun"),
        (_TORCHRUN[:2], "torchrun"),
    ):
        if any(name in environment for name in names):
            _require(environment, names, launcher)
            return _rank_and_size(environment, *names)
    return None if environment.get("MYDIST_CONTROLLER") == "mpi" else (0, 1)


def detect(
    generation: int,
    environment: Mapping[str, str] = os.environ,
    members: tuple[int, ...] | None = None,
) -> LaunchContext:
    """Reads the environment.

    Args:
        generation: which init() of this process it is, counted from 1; equal on all ranks. It keeps
            a rank that is still in an earlier init from meeting those in a later one.
        environment: for tests.
        members: the launched ranks that form the job, ascending, this one among them; None: all.

    Raises:
        ValueError: a variable is malformed, or missing while its companions are set.
        MydistError: the launcher and MYDIST_CONTROLLER contradict each other, the launcher is not
            supported, or it cannot be reached.
    """
    controller = environment.get("MYDIST_CONTROLLER", "auto") or "auto"
    names = ["auto", *transport_names()]
    if controller not in names:
        raise ValueError(
            f"MYDIST_CONTROLLER={controller!r} is not valid: "
            f"expected {', '.join(names[:-1])} or {names[-1]}"
        )
    attempt = _Attempt(generation, members)
    if any(name in environment for name in _MYDISTRUN[:3]):
        return _from_mydistrun(attempt, environment, controller)
    if any(name in environment for name in _OPEN_MPI):
        return _from_open_mpi(attempt, environment, controller)
    if any(name in environment for name in _TORCHRUN[:2]):
        return _from_torchrun(attempt, environment, controller)
    refuse_foreign_launcher(environment)
    if controller == "mpi":
        return LaunchContext(rank=-1, size=0, backend="mpi")
    return LaunchContext(rank=0, size=1, backend="local")


def timeout_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """How long the ranks may take to meet: MYDIST_TIMEOUT_SECONDS, else 30."""
    text = environment.get("MYDIST_TIMEOUT_SECONDS", "")
    try:
        seconds = float(text) if text else 30.0
    except ValueError:
        seconds = -1.0
    if not 0.0 < seconds < 1e6:
        raise ValueError(f"MYDIST_TIMEOUT_SECONDS={text}: expected a number of seconds above 0")
    return seconds


def _from_mydistrun(
    attempt: _Attempt, environment: Mapping[str, str], controller: str
) -> LaunchContext:
    _require(environment, _MYDISTRUN, "mydistrun")
    rank, size = attempt.seat(*_rank_and_size(environment, "MYDIST_RANK", "MYDIST_SIZE"))
    if controller == "mpi":
        raise MydistError(
            "MYDIST_CONTROLLER=mpi, but the job was started by mydistrun without MPI. Start it "
            "with `mydistrun --mpi`, or leave MYDIST_CONTROLLER unset"
        )
    if size == 1:
        return LaunchContext(rank, size, "local")
    timeout = timeout_seconds(environment)
    exchange, close = launcher_exchange(environment, attempt.label(), rank, size, timeout)
    return LaunchContext(rank, size, controller, exchange, close, rank_ends_descriptor(environment))


def rank_ends_descriptor(environment: Mapping[str, str] = os.environ) -> int:
    """The descriptor, if it is still what mydistrun has passed: a program may close what it does
    not know."""
    with contextlib.suppress(KeyError, OSError, ValueError):
        descriptor = int(environment["MYDIST_JOB_ENDS_FD"])
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/memfd:mydist-rank-ends"):
            return descriptor
    return -1


def _from_open_mpi(
    attempt: _Attempt, environment: Mapping[str, str], controller: str
) -> LaunchContext:
    _require(environment, _OPEN_MPI, "Open MPI's mpirun")
    rank, size = attempt.seat(*_rank_and_size(environment, *_OPEN_MPI))
    if controller not in ("auto", "mpi") and size > 1:
        start = "mydistrun --gloo" if controller == "gloo" else "mydistrun"
        raise MydistError(
            f"MYDIST_CONTROLLER={controller}, but the job was started by mpirun, which provides no "
            f"rendezvous. Start it with `{start}`, or leave MYDIST_CONTROLLER unset"
        )
    if size == 1 and (controller != "mpi" or attempt.members is not None):
        return LaunchContext(rank, size, "local")
    return LaunchContext(rank, size, "mpi")


def _from_torchrun(
    attempt: _Attempt, environment: Mapping[str, str], controller: str
) -> LaunchContext:
    _require(environment, _TORCHRUN[:2], "torchrun")
    rank, size = attempt.seat(*_rank_and_size(environment, "RANK", "WORLD_SIZE"))
    if controller == "mpi":
        raise MydistError(
            "MYDIST_CONTROLLER=mpi, but RANK and WORLD_SIZE say that the job was started by "
            "torchrun. Start it with mpirun or `mydistrun --mpi`, or leave MYDIST_CONTROLLER unset"
        )
    if size == 1:
        return LaunchContext(rank, size, "local")
    _require(environment, _TORCHRUN, "torchrun")
    _number(environment, "MASTER_PORT", 1, 65535)
    timeout = timeout_seconds(environment)
    exchange = store_exchange(environment, attempt.label(), rank, size, timeout)
    return LaunchContext(rank, size, controller, exchange)


def refuse_foreign_launcher(environment: Mapping[str, str]) -> None:
    """Without this, a job of n ranks would silently run as n jobs of one rank."""
    if environment.get("PMI_SIZE", "1") != "1" and "PMI_RANK" in environment:
        raise MydistError(
            f"PMI_RANK={environment['PMI_RANK']}, PMI_SIZE={environment['PMI_SIZE']}: the job was "
            "started by the mpirun of MPICH or a related MPI, but mydist supports Open MPI only. "
            "Use Open MPI's mpirun, mydistrun or torchrun"
        )
    # srun's own variables would be understood here; salloc and sbatch set some of them as well, but
    # the number of tasks of the running step is above 1 under srun only.
    if environment.get("SLURM_STEP_NUM_TASKS", "1") != "1" and "SLURM_PROCID" in environment:
        raise MydistError(
            f"SLURM_PROCID={environment['SLURM_PROCID']}: the job was started by srun, which this "
            "version does not support. Use mpirun, mydistrun or torchrun inside the allocation"
        )


def _require(environment: Mapping[str, str], names: tuple[str, ...], launcher: str) -> None:
    missing = [name for name in names if name not in environment]
    if missing:
        present = [name for name in names if name in environment]
        raise ValueError(
            f"{', '.join(missing)} not set, although {', '.join(present)} is: {launcher} sets "
            f"{'all of them' if len(names) > 2 else 'both'}. Start with {launcher}, or unset "
            f"{', '.join(present)} to run as one process"
        )


def _rank_and_size(environment: Mapping[str, str], rank: str, size: str) -> tuple[int, int]:
    count = _number(environment, size, 1, 2**31 - 1)
    return _number(environment, rank, 0, count - 1), count


def _number(environment: Mapping[str, str], name: str, low: int, high: int) -> int:
    text = environment[name]
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and low <= int(text) <= high):
        raise ValueError(f"{name}={text}: expected an integer from {low} to {high}")
    return int(text)
