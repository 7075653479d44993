"""One run: a job, one fault, and all that is observed of it."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from multiproc.job import TESTS, launcher_command
from multiproc.leftovers import held_arenas, processes_with, temporary_files, unowned_arenas
from multiproc.processes import descendants, is_running
from multiproc.watched_job import WatchedJob, watched_job

from faults.catalogue import NP, TENSOR, Act, Fault, Plane, Point

WORKER = Path(__file__).parent / "worker.py"
QUICK_TORCH = TESTS / "quick_torch"
# Of a report that does not come, beyond what the settings allow; and of a job that does not end.
PATIENCE_S = 30.0
POLL_S = 0.002
_MAPPED_FOLDER = re.compile(r"/dev/shm/mydistrun-\w+")


@dataclass
class Run:
    """What was observed. Times are of time.monotonic(), which all processes of a machine share."""

    ready: dict[int, dict[str, Any]]
    struck_at: float = 0.0
    reports: dict[int, dict[str, Any]] = field(default_factory=dict)
    ended_at: float = 0.0  # The end of mydistrun; without it, of the last process of the job.
    code: int | None = None  # None: the job had to be ended.
    output: str = ""
    left: list[str] = field(default_factory=list)


def run_once(fault: Fault, plane: Plane, folder: Path) -> Run:
    """Starts a job in an empty folder and lets the fault happen."""
    (folder / "tmp").mkdir()
    before = unowned_arenas()
    what = (fault.phase.value, fault.act.value, fault.collective.value, fault.failpoint)
    worker = (str(WORKER), *what, str(fault.victim), str(folder))
    with watched_job(
        launcher_command(NP, plane.backend, *worker), _environment(fault, plane, folder), folder
    ) as job:
        watch = EndWatch(job.process)
        run = Run({rank: job.row(f"ready{rank}") for rank in range(NP)})
        family = descendants(job.process.pid)
        shared = _shared_folders(folder)
        run.struck_at = _strike(fault, job, run)
        if fault.act is Act.WITHHOLD:
            run.reports = _warnings(fault, job, run)
            job.tell("go")
        else:
            run.reports = _errors(fault, job)
        run.ended_at, run.code = watch.end()
        if fault.act is Act.KILL_LAUNCHER:
            run.ended_at = _await_gone(family)
        # Looked for at once: what is there when the job has ended is left behind.
        run.left = _left(run, folder, family, before, shared)
        for pid in filter(is_running, family):  # The next run is to have the machine for itself.
            _send(pid, signal.SIGKILL)
    run.output = job.output()
    return run


def _environment(fault: Fault, plane: Plane, folder: Path) -> dict[str, str]:
    paths = [str(TESTS), str(QUICK_TORCH), os.environ.get("PYTHONPATH", "")]
    own = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "TMPDIR": str(folder / "tmp"),
        "MYDIST_STALL_SHUTDOWN_SECONDS": "0",
    }
    return own | dict(plane.env) | dict(fault.env)


def _strike(fault: Fault, job: WatchedJob, run: Run) -> float:
    """Lets the fault happen; gives the moment."""
    if fault.point is not None:
        return _await_failpoint(fault.point, job)
    time.sleep(random.uniform(0.05, 0.2))  # A moment that no rank knows.
    if fault.act is Act.WITHHOLD:
        return max(run.ready[rank]["at"] for rank in fault.survivors)
    if fault.act is Act.KILL_LAUNCHER:
        return _send(job.process.pid, signal.SIGKILL)
    if fault.act.is_signal:
        return _send(run.ready[fault.victim]["pid"], signal.Signals[fault.act.value])
    job.tell("go")
    return float(job.row("struck")["at"])


def _await_failpoint(point: Point, job: WatchedJob) -> float:
    """The moment that the victim itself has written down."""
    pattern = rf"failpoint {point.value} strikes at ([0-9.]+) s"
    _poll(lambda: re.search(pattern, job.output()) is not None, PATIENCE_S, POLL_S * 5)
    found = re.search(pattern, job.output())
    assert found, f"the rank did not come to its failpoint {point.value}:\n{job.output()}"
    return float(found[1])


def _send(pid: int, number: signal.Signals) -> float:
    at = time.monotonic()
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    return at


def _errors(fault: Fault, job: WatchedJob) -> dict[int, dict[str, Any]]:
    """The rows of the survivors, each as it was written; without those that do not come."""

    def found() -> dict[int, dict[str, Any]]:
        rows = {rank: job.row_if_there(f"learned{rank}") for rank in fault.survivors}
        return {rank: row for rank, row in rows.items() if row is not None}

    def is_over() -> bool:
        ended = job.process.poll() is not None
        return len(found()) == len(fault.survivors) or ended

    _poll(is_over, fault.after_s + PATIENCE_S, POLL_S * 5)
    return found()


def _warnings(fault: Fault, job: WatchedJob, run: Run) -> dict[int, dict[str, Any]]:
    """The warning of each survivor with the moment at which mydistrun has shown it."""
    rows: dict[int, dict[str, Any]] = {}

    def look() -> bool:
        output = job.output()
        for rank in set(fault.survivors) - rows.keys():
            line = re.search(rf"^\[{rank}\]<stderr>:.*WARNING.*'{TENSOR}'.*$", output, re.MULTILINE)
            if line:
                at = time.monotonic()
                rows[rank] = {"at": at, "since": run.ready[rank]["at"], "text": line[0]}
        return len(rows) == len(fault.survivors)

    _poll(look, fault.after_s + PATIENCE_S)
    return rows


class EndWatch:
    """Notes when a process has ended, whatever else goes on meanwhile."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._ended_at = 0.0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        self._process.wait()
        self._ended_at = time.monotonic()

    def end(self) -> tuple[float, int | None]:
        """The moment and the exit code; no code where the process still runs after a while."""
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            return time.monotonic(), None
        return self._ended_at, self._process.returncode


def _await_gone(family: Iterable[int]) -> float:
    """When none of them ran any more; later than PATIENCE_S from now: they still do."""
    _poll(lambda: not any(map(is_running, family)), PATIENCE_S)
    return time.monotonic()


def _poll(is_over: Callable[[], bool], timeout_s: float, pause_s: float = POLL_S) -> None:
    end = time.monotonic() + timeout_s
    while not is_over() and time.monotonic() < end:
        time.sleep(pause_s)


def _shared_folders(folder: Path) -> set[str]:
    """The folders in /dev/shm that the command lines of this job name: mpirun's have one."""
    return {name for line in processes_with(str(folder)) for name in _MAPPED_FOLDER.findall(line)}


def _left(
    run: Run, folder: Path, family: Iterable[int], before: set[str], shared: set[str]
) -> list[str]:
    """One text for each thing that the job has left behind."""
    arenas = {name for row in run.ready.values() for name in row["arenas"]}
    names: Mapping[str, Iterable[object]] = {
        "process": filter(is_running, family),
        "process with the command": processes_with(str(folder)),
        "process that holds shared memory": held_arenas(arenas),
        "file in /dev/shm": unowned_arenas() - before,
        "folder in /dev/shm": filter(os.path.exists, shared),
        "temporary file": temporary_files(folder / "tmp"),
    }
    return [f"{what} {name}" for what, found in names.items() for name in found]
