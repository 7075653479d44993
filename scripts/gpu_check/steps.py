"""Steps of the check: what each runs, what became of it, and the files that tell so."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "FAILED", "skipped", "NOT RUN"
MET, MISSED, NOT_MEASURED = "met", "missed", "not measured"
_FINE = (PASSED, SKIPPED, MET, MISSED)  # A figure is no mistake.
_TAIL = 6000  # Characters of the output of what failed, in results.json.


@dataclass(frozen=True)
class Reading:
    """What came of a step whose exit code is 0."""

    words: str = ""
    verdict: str = PASSED


@dataclass
class Step:
    """One line of the table.

    `reads` tells what came of it from its output, or raises an error that says what is wrong
    although the exit code is 0. `obstacle`: why it cannot run. `limit_s`: seconds at most."""

    name: str
    command: Sequence[str]
    needs_gpu: bool = True
    is_base: bool = False  # Without it nothing after it can be run.
    obstacle: str = ""
    reads: Callable[[str], Reading] = lambda output: Reading()
    environment: Mapping[str, str] = field(default_factory=dict)
    limit_s: float = 240


@dataclass
class Outcome:
    """What became of a step: one of the words above, seconds, a few more words, and the end of its
    output where it failed."""

    name: str
    verdict: str
    seconds: float = 0.0
    detail: str = ""
    tail: str = ""


def is_fine(outcomes: Iterable[Outcome]) -> bool:
    """Whether nothing failed, or was left out for another reason than that there is no GPU."""
    return all(outcome.verdict in _FINE for outcome in outcomes)


def format_table(facts: Mapping[str, str], outcomes: Iterable[Outcome]) -> str:
    """A line for each fact and each step."""
    lines = [f"{name:12} {value}" for name, value in facts.items()]
    for outcome in outcomes:
        took = f"{outcome.seconds:6.1f} s" if outcome.seconds else " " * 8
        lines.append(f"{outcome.verdict:12} {took}  {outcome.name:34} {outcome.detail}".rstrip())
    return "\n".join(lines)


class Results:
    """The folder of the results, whose files are whole at any time."""

    def __init__(self, folder: Path, logs: Path, facts: Mapping[str, str]) -> None:
        """`logs` is where steps leave logs and reports, and is emptied."""
        self.folder, self.logs, self.facts = folder, logs, facts
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(logs, ignore_errors=True)  # Else a step that writes none is judged by it.
        logs.mkdir(parents=True)

    def write(self, outcomes: Sequence[Outcome]) -> None:
        """What is known so far."""
        steps = [asdict(outcome) for outcome in outcomes]
        document = {"facts": dict(self.facts), "steps": steps}
        text = json.dumps(document, indent=2, ensure_ascii=False)
        self._replace("results.json", lambda path: path.write_text(text + "\n", "utf-8"))
        table = format_table(self.facts, outcomes)
        self._replace("summary.txt", lambda path: path.write_text(table + "\n", "utf-8"))
        self._replace("logs.tar.gz", self._pack)

    def _pack(self, path: Path) -> None:
        with tarfile.open(path, "w:gz") as archive:
            archive.add(self.logs, arcname="logs")

    def _replace(self, name: str, write: Callable[[Path], object]) -> None:
        fresh = self.folder / f".{name}"
        write(fresh)
        fresh.replace(self.folder / name)


def run_steps(
    steps: Iterable[Step], no_gpu: str, results: Results, deadline: float
) -> list[Outcome]:
    """One after the other until `deadline` (of time.monotonic()); none after a base that failed."""
    outcomes: list[Outcome] = []
    stopped = ""
    for step in steps:
        left = deadline - time.monotonic()
        if stopped or left <= 0:
            outcomes.append(Outcome(step.name, NOT_RUN, detail=stopped or "time ran out"))
        elif step.needs_gpu and no_gpu:
            outcomes.append(Outcome(step.name, SKIPPED, detail=no_gpu))
        elif step.obstacle:
            outcomes.append(Outcome(step.name, NOT_RUN, detail=step.obstacle))
        else:
            log = results.logs / f"{len(outcomes):02}.log"
            outcomes.append(_run(step, log, min(left, step.limit_s)))
        last = outcomes[-1]
        if step.is_base and not stopped and last.verdict != PASSED:
            stopped = f"{step.name}: {last.verdict}"
        print(f"{last.verdict:12} {step.name}", flush=True)
        results.write(outcomes)
    return outcomes


def _run(step: Step, log: Path, seconds: float) -> Outcome:
    start = time.monotonic()
    ended = ""
    with log.open("wb") as output:  # Not through a pipe: what was written stays, whatever happens.
        try:
            process = subprocess.Popen(
                step.command,
                cwd=Path(__file__).resolve().parents[2],
                env={**os.environ, **step.environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return Outcome(step.name, NOT_RUN, detail=str(error))
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            ended = f"not over in {seconds:.0f} s"
        finally:
            _end(process)
    took = time.monotonic() - start
    written = log.read_text("utf-8", errors="replace")
    reading, wrong = _read(step, written)
    if not ended and process.returncode != 0:
        ended = f"exit code {process.returncode}"
    if not ended and not wrong and reading.verdict != FAILED:
        return Outcome(step.name, reading.verdict, took, reading.words)
    told = "; ".join(filter(None, [ended, reading.words or ("" if ended else wrong)]))
    return Outcome(step.name, FAILED, took, f"{told}; see {log.name}", written[-_TAIL:])


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends it, if it still runs, and what it has left behind, which would disturb the next step.

    pytest, when it is interrupted, reports on what has run."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None or number == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=10)


def _read(step: Step, output: str) -> tuple[Reading, str]:
    """What came of it; or what is wrong."""
    try:
        return step.reads(output), ""
    except Exception as error:  # The other steps go on, whatever the output of this one is.
        return Reading(), f"{type(error).__name__}: {error}"
