"""Steps of the check: what each runs, what became of it, and the files that tell so."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
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
_FILES = ("results.json", "summary.txt", "logs.tar.gz")
# How a step is ended, and how long each may take, in seconds.
_ENDINGS = {signal.SIGINT: 8.0, signal.SIGTERM: 4.0, signal.SIGKILL: 3.0}


@dataclass(frozen=True)
class Reading:
    """What came of a step whose exit code is 0."""

    words: str = ""
    verdict: str = PASSED


@dataclass
class Step:
    """One line of the table.

    `makes` and `uses` are files and folders, whose names may be patterns: none is there before, and
    without one that it uses it cannot run. `instead_of` names the step that has to have failed.
    `reads` tells what came of it from its output, or raises an error that says what is wrong
    although the exit code is 0. `obstacle`: why it cannot run. `limit_s`: seconds at most."""

    name: str
    command: Sequence[str]
    needs_gpu: bool = True
    makes: Sequence[Path] = ()
    uses: Sequence[Path] = ()
    instead_of: str = ""
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


def choose(steps: Sequence[Step], pattern: str) -> list[Step]:
    """Those whose name has it, and those that make what they use."""
    chosen: list[Step] = []
    used: set[Path] = set()
    for step in reversed(steps):
        if re.search(pattern, step.name) or used & set(step.makes):
            chosen.insert(0, step)
            used |= set(step.uses)
    return chosen


class Results:
    """The folder of the results, whose files are whole at any time."""

    def __init__(self, folder: Path, logs: Path, facts: Mapping[str, str]) -> None:
        """`logs` is where steps leave logs and reports, and is emptied.

        What an earlier run has left in the folder is put aside: it may be of another commit."""
        self.folder, self.logs, self.facts = folder, logs, facts
        folder.mkdir(parents=True, exist_ok=True)
        if earlier := [folder / name for name in _FILES if (folder / name).exists()]:
            aside = (folder / f"earlier_{number}" for number in itertools.count(1))
            target = next(path for path in aside if not path.exists())
            target.mkdir()
            for path in earlier:
                path.rename(target / path.name)
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
    steps: Sequence[Step], no_gpu: str, results: Results, deadline: float
) -> list[Outcome]:
    """One after the other; the last one is ended, too, by `deadline` (of time.monotonic())."""
    outcomes: list[Outcome] = []
    for step in steps:  # What an earlier run has left would pass for what this one makes.
        _remove(step.makes)
    for step in steps:
        verdicts = {outcome.name: outcome.verdict for outcome in outcomes}
        if step.instead_of and verdicts.get(step.instead_of, PASSED) == PASSED:
            continue
        left = deadline - time.monotonic() - sum(_ENDINGS.values())
        if left <= 0:
            outcomes.append(Outcome(step.name, NOT_RUN, detail="time ran out"))
        elif step.needs_gpu and no_gpu:
            outcomes.append(Outcome(step.name, SKIPPED, detail=no_gpu))
        elif obstacle := step.obstacle or _what_lacks(step.uses):
            outcomes.append(Outcome(step.name, NOT_RUN, detail=obstacle))
        else:
            log = results.logs / f"{len(outcomes):02}.log"
            outcomes.append(_run(step, log, min(left, step.limit_s)))
        last = outcomes[-1]
        print(f"{last.verdict:12} {step.name}", flush=True)
        results.write(outcomes)
    return outcomes


def _remove(patterns: Iterable[Path]) -> None:
    for path in [found for pattern in patterns for found in pattern.parent.glob(pattern.name)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _what_lacks(patterns: Iterable[Path]) -> str:
    """Empty if all is there."""
    absent = [path.name for path in patterns if not any(path.parent.glob(path.name))]
    return f"not there: {', '.join(absent)}" if absent else ""


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
    for number, seconds in _ENDINGS.items():
        if process.poll() is None or number == signal.SIGKILL:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=seconds)


def _read(step: Step, output: str) -> tuple[Reading, str]:
    """What came of it; or what is wrong."""
    try:
        return step.reads(output), ""
    except Exception as error:  # The other steps go on, whatever the output of this one is.
        return Reading(), f"{type(error).__name__}: {error}"
