"""The same faults in other libraries: how soon survivors learn, and whether the error says who.

A rank of each library is in a file of this folder. It leaves the rows ready<rank> and
learned<rank>, as ../worker.py does. Each library has its own time-out, which is set to TIMEOUT_S.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from multiproc.processes import descendants, is_running
from multiproc.watched_job import WatchedJob, watched_job

from faults.catalogue import LAST, NP, Act, Phase
from faults.cells import format_times

HERE = Path(__file__).parent
TIMEOUT_S = 10
PATIENCE_S = 60.0  # "not within 60 s".
PEER_FAULTS = {
    "sigkill-inside": "SIGKILL in a collective",
    "sigkill-between": "SIGKILL between collectives",
    "sigstop-inside": "SIGSTOP in a collective",
    "exception": "Python exception",
}
_ACTS = {
    "sigkill-inside": (Phase.INSIDE, Act.KILL),
    "sigkill-between": (Phase.BETWEEN, Act.KILL),
    "sigstop-inside": (Phase.INSIDE, Act.STOP),
    "exception": (Phase.BETWEEN, Act.RAISE),
}
_SURVIVORS = tuple(rank for rank in range(NP) if rank != LAST)


@dataclass
class PeerCell:
    """What came of one fault in one library, all runs together."""

    library: str
    fault: str
    expected: int = 0  # Survivors.
    learned_s: list[float] = field(default_factory=list)
    ended_s: list[float] = field(default_factory=list)  # Jobs that the launcher ended.
    naming: int = 0  # Errors that name the rank.
    texts: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Peer:
    """How a library starts a job. `command` begins with what the rank's arguments follow."""

    title: str
    command: Callable[[Path], Sequence[str]]
    env: Mapping[str, str]


def format_peer(cell: PeerCell) -> str:
    """One entry of the table."""
    count = len(cell.learned_s)
    if not count:
        if not cell.ended_s:
            return f"not within {PATIENCE_S:g} s"
        return f"no error; the launcher ends them after {statistics.median(cell.ended_s):.1f} s"
    names = {0: "no", count: "yes"}.get(cell.naming, f"{cell.naming} of {count}")
    missing = cell.expected - count
    return f"{format_times(cell.learned_s)}; {names}" + (
        f"; {missing} of {cell.expected} have no error" * bool(missing)
    )


def peers_at_hand(horovod_python: str | None) -> list[Peer]:
    """The libraries that can be run here: torch always, the others if they are there."""
    found = [Peer("torchrun, DDP over Gloo", _torchrun, {})]
    if shutil.which("mpirun") and shutil.which("mpicc"):
        found.append(Peer("Open MPI, errors returned", _mpirun, {}))
    if horovod_python is None and importlib.util.find_spec("horovod") is not None:
        horovod_python = sys.executable
    if horovod_python is not None:
        env = {
            "HOROVOD_CPU_OPERATIONS": "gloo",
            "HOROVOD_GLOO_TIMEOUT_SECONDS": str(TIMEOUT_S),
            "HOROVOD_STALL_CHECK_TIME_SECONDS": str(TIMEOUT_S // 2),
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": str(TIMEOUT_S),
        }
        found.append(Peer("Horovod over Gloo", lambda _: _horovodrun(horovod_python), env))
    return found


def _torchrun(folder: Path) -> Sequence[str]:
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        port = chosen.getsockname()[1]
    flags = (f"--nproc-per-node={NP}", "--master-addr=127.0.0.1", f"--master-port={port}")
    return (sys.executable, "-m", "torch.distributed.run", *flags, *_python_rank("ddp"))


def _horovodrun(python: str) -> Sequence[str]:
    launcher = str(Path(python).with_name("horovodrun"))
    return (python, launcher, "-np", str(NP), "--gloo", python, *_python_rank("horovod"))


def _python_rank(library: str) -> Sequence[str]:
    return (str(HERE / "python_rank.py"), library)


def _mpirun(folder: Path) -> Sequence[str]:
    program = str(folder / "openmpi_rank")
    subprocess.run(["mpicc", "-O1", "-o", program, str(HERE / "openmpi_rank.c")], check=True)
    return ("mpirun", "-np", str(NP), "--oversubscribe", program)


def run_peer(peer: Peer, fault: str, folder: Path, cell: PeerCell) -> None:
    """One job, one fault; adds to the cell what came of it."""
    phase, act = _ACTS[fault]
    command = [*peer.command(folder), phase.value, act.value, str(LAST), str(folder)]
    with watched_job(command, peer.env, folder) as job:
        rows = {rank: job.row(f"ready{rank}") for rank in range(NP)}
        family = descendants(job.process.pid)
        time.sleep(0.3)  # All ranks are in the collective by now.
        if act is Act.RAISE:
            job.tell("go")
            struck_at = float(job.row("struck")["at"])
        else:
            struck_at = time.monotonic()
            os.kill(rows[LAST]["pid"], signal.Signals[act.value])
        ended_at = _await_end(job, struck_at)
        learned = {rank: job.row_if_there(f"learned{rank}") for rank in _SURVIVORS}
        for pid in filter(is_running, family):
            os.kill(pid, signal.SIGKILL)
    cell.expected += len(_SURVIVORS)
    if ended_at is not None:
        cell.ended_s.append(ended_at - struck_at)
    for row in learned.values():
        if row is not None:
            cell.learned_s.append(row["at"] - struck_at)
            cell.naming += bool(re.search(rf"\brank\W*{LAST}\b", row["text"]))
            cell.texts.append(row["text"][:400])


def _await_end(job: WatchedJob, struck_at: float) -> float | None:
    """When the launcher had ended; None: not within the time, or only once all had learned."""
    while time.monotonic() < struck_at + PATIENCE_S:
        if job.process.poll() is not None:
            return time.monotonic()
        if all(job.row_if_there(f"learned{rank}") is not None for rank in _SURVIVORS):
            return None
        time.sleep(0.01)
    return None
