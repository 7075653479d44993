"""Starting jobs of several ranks and reading what they leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from multiproc.jobs import Job

TESTS = Path(__file__).resolve().parent.parent
WORKERS = TESTS / "multiproc" / "workers"

# A failing check may leave ranks waiting for each other; then the engine ends the wait.
STALL_SECONDS = 60

# Under which some suites run.
_SHARED = {"MYDIST_SHARED_MEMORY": "1"}  # Its default, which backend_environment() takes away.
# The machine may be slow: a rank that is late is no reason to negotiate.
_FROZEN = _SHARED | {"MYDIST_FREEZE_AFTER": "2", "MYDIST_STALL_WARNING_SECONDS": "600"}
# Open MPI as between hosts; for Gloo there is nothing else.
OVER_TCP = {
    "OMPI_MCA_pml": "ob1",
    "OMPI_MCA_btl": "self,tcp",
    "OMPI_MCA_btl_tcp_if_include": "lo",
}
_ENVIRONMENTS = {
    "servers": _SHARED | {"MYDIST_SERVERS": "2"},
    "servers_over_tcp": {"MYDIST_SERVERS": "2", "MYDIST_PS_PIECE_KB": "64"},
    "unfused": {"MYDIST_FUSION_THRESHOLD_MB": "0"},
    "shared": _SHARED,
    "bucketed": _SHARED | {"MYDIST_BUCKET_SIZE_MB": "0.5"},
    "steady": _SHARED,
    "steady_hosts": _SHARED | {"TEST_RANKS_PER_HOST": "2"},
    "frozen": _FROZEN,
    "late": _FROZEN,
    "crowded": _FROZEN | {"TEST_CORES": "2"},
    "late_hosts": _FROZEN | OVER_TCP | {"TEST_RANKS_PER_HOST": "2"},
    "late_lone": _FROZEN | OVER_TCP | {"TEST_RANKS_PER_HOST": "1"},
    "hosts": _SHARED | {"TEST_RANKS_PER_HOST": "2"},
    "frozen_hosts": _FROZEN | {"TEST_RANKS_PER_HOST": "2"},
    "frozen_lone": _FROZEN | {"TEST_RANKS_PER_HOST": "1"},
}


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    code: int
    output: str  # stdout and stderr, in the order they came.

    def expect_success(self) -> Outcome:
        assert self.code == 0, f"exit code {self.code}, expected 0; output:\n{self.output}"
        return self


def job_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of this process without traces of other jobs, set up for test jobs."""
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MYDIST_", "OMPI_", "PMIX_", "PRTE_"))
        and name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    }
    own["OMP_NUM_THREADS"] = "1"
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(TESTS), own.get("PYTHONPATH")]))
    own["MYDIST_STALL_SHUTDOWN_SECONDS"] = str(STALL_SECONDS)
    if os.geteuid() == 0:
        own["OMPI_ALLOW_RUN_AS_ROOT"] = own["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] = "1"
    return own | dict(extra or {})


def launcher_command(np: int, backend: str, *command: str, flags: Sequence[str] = ()) -> list[str]:
    """`mydistrun -np N --BACKEND FLAGS python COMMAND` of the Python that runs the tests.

    "local" has no flag: it is what mydistrun chooses on one host.
    """
    return [
        *(sys.executable, "-m", "mydist.launcher", "-np", str(np)),
        *([] if backend == "local" else [f"--{backend}"]),
        *flags,
        *(sys.executable, *command),
    ]


def backend_environment(backend: str) -> dict[str, str]:
    """What makes sure that the backend itself carries messages and tensors."""
    if backend == "local":
        return {"MYDIST_CONTROLLER": "local"}
    return {"MYDIST_SHARED_MEMORY": "0"}


def run(command: Sequence[str], timeout: float, env: Mapping[str, str] | None = None) -> Outcome:
    """Runs a command to its end in a process group of its own; at most `timeout` seconds."""
    process = subprocess.Popen(
        list(command),
        env=job_environment(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.terminate()  # The launcher takes its ranks down with it.
        try:
            output, _ = process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
        text = output.decode(errors="replace")
        raise AssertionError(
            f"not finished after {timeout} s: {' '.join(command)}\n{text[-6000:]}"
        ) from None
    return Outcome(process.returncode, output.decode(errors="replace"))


def launch(
    np: int,
    backend: str,
    *command: str,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    flags: Sequence[str] = (),
) -> Outcome:
    """Runs a Python script with its arguments, or `-c CODE`, on `np` ranks."""
    own = backend_environment(backend) | dict(env or {})
    return run(launcher_command(np, backend, *command, flags=flags), timeout, own)


class CheckResults:
    """What the ranks of one job reported, by check."""

    job_seconds = 0.0  # From start to end.

    def __init__(self, np: int, folder: Path, outcome: Outcome | None, problem: str = "") -> None:
        self._np = np
        self._outcome = outcome
        self._problem = problem
        self._rows: dict[str, dict[int, str]] = {}
        self._skipped: dict[str, dict[int, str]] = {}  # Reasons, of those that could not be.
        self._seconds: dict[str, float] = {}  # Of the slowest rank.
        for rank in range(np):
            path = folder / f"rank{rank}.jsonl"
            lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
            for line in lines:
                row = json.loads(line)
                self._rows.setdefault(row["check"], {})[rank] = row["traceback"]
                self._seconds[row["check"]] = max(
                    row["seconds"], self._seconds.get(row["check"], 0.0)
                )
                if row["skipped"]:
                    self._skipped.setdefault(row["check"], {})[rank] = row["skipped"]

    def expect_passed(self, name: str) -> None:
        """Fails with every rank's traceback, or with how the job ended when there is none. Skips
        the test with its reason where the check could not be.
        """
        by_rank = self._rows.get(name, {})
        report = [
            f"--- rank {rank} of {self._np}\n{text}" for rank, text in by_rank.items() if text
        ]
        missing = [rank for rank in range(self._np) if rank not in by_rank]
        if missing:
            ended = self._problem or (
                f"the job ended with exit code {self._outcome.code}:\n"
                f"{self._outcome.output[-4000:]}"
                if self._outcome
                else ""
            )
            report.append(f"--- no result from ranks {missing}; {ended}")
        skipped = self._skipped.get(name, {})
        if skipped and len(skipped) < self._np:
            report.append(f"--- not checked on all ranks: {skipped}")
        assert not report, "\n".join(report)

    def seconds(self, name: str) -> float:
        """How long the check took on the slowest rank."""
        return self._seconds.get(name, 0.0)

    def reason_to_skip(self, name: str) -> str:
        """Why the check cannot be made here; empty: it was."""
        return self._skipped.get(name, {}).get(0, "")

    def expect_clean_end(self) -> None:
        assert self._outcome is not None, self._problem
        self._outcome.expect_success()


def run_suite(job: Job, folder: Path, timeout: float) -> CheckResults:
    """Runs the checks of a job's suite."""
    env = _ENVIRONMENTS.get(job.suite, {})
    worker = (str(WORKERS / "check_worker.py"), job.suite, "all" if job.every_case else "few")
    started, outcome, problem = time.monotonic(), None, ""
    try:
        outcome = launch(job.np, job.backend, *worker, str(folder), timeout=timeout, env=env)
    except AssertionError as error:
        problem = str(error)
    results = CheckResults(job.np, folder, outcome, problem)
    results.job_seconds = time.monotonic() - started
    return results
