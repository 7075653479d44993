"""Runs the fuzz targets of tests/fuzz, several at a time, and prints a table of what came of it.

scripts/fuzz.sh builds them and calls this; see there.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREE = ROOT / "build" / "fuzz"
KEPT = ROOT / "tests" / "fuzz" / "corpus"
FOUND = TREE / "found"
# No parser may take longer for an input, or more memory.
LIMITS = ("-timeout=10", "-rss_limit_mb=2048")
MAX_BYTES = 1024
# A kept corpus is small: of more inputs than that, short and long ones are kept.
MOST_KEPT = 24
VERDICTS = {0: "ok", 70: "TOO SLOW", 71: "TOO MUCH MEMORY"}
_STATISTIC = re.compile(r"^stat::(\w+):\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Target:
    """A name and the command that runs it, up to its options."""

    name: str
    command: tuple[str, ...]

    @property
    def corpus(self) -> Path:
        """What all runs of this clone have reached."""
        return TREE / "corpus" / self.name


@dataclass(frozen=True)
class Outcome:
    """One run of a target; `seconds` are of a core, whatever else the machine does."""

    target: Target
    verdict: str
    executions: int
    seconds: float
    new_inputs: int
    log: Path


def environment() -> dict[str, str]:
    """Of all targets. A parser that is given any bytes must not leak either."""
    return {
        **os.environ,
        "PYTHONPATH": f"{TREE / 'python'}:{ROOT / 'tests'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "ASAN_OPTIONS": f"detect_stack_use_after_return=1:{os.environ.get('ASAN_OPTIONS', '')}",
        "UBSAN_OPTIONS": f"print_stacktrace=1:{os.environ.get('UBSAN_OPTIONS', '')}",
    }


def names(command: Sequence[str]) -> list[str]:
    """The targets that a program has."""
    done = subprocess.run(
        [*command, "--list"], env=environment(), stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout.split()


def all_targets(python: Path) -> Iterator[tuple[list[str], list[Target]]]:
    """By program: how it is called, and its targets."""
    core = [str(TREE / "fuzz")]
    yield core, [Target(name, (*core, f"--target={name}")) for name in names(core)]
    if python.exists():
        own = [str(python), "-m", "fuzz.python"]
        yield own, [Target(name, (*own, name)) for name in names(own)]


def make_corpus(programs: Sequence[tuple[list[str], list[Target]]]) -> None:
    """Folders for what is reached, with the seeds in them."""
    for command, targets in programs:
        subprocess.run([*command, f"--seeds={TREE / 'corpus'}"], env=environment(), check=True)
        for target in targets:
            (KEPT / target.name).mkdir(parents=True, exist_ok=True)


def run_target(target: Target, seconds: int) -> Outcome:
    """Blocks until the time is up, or a promise is broken."""
    log = TREE / "logs" / f"{target.name}.log"
    before = {file.name for file in target.corpus.iterdir()}
    command = [
        *target.command,
        f"-max_total_time={seconds}",
        *LIMITS,
        f"-max_len={MAX_BYTES}",
        f"-artifact_prefix={FOUND}/{target.name}-",
        "-print_final_stats=1",
        "-entropic=0",  # A costly choice of inputs: three times the rest of `vertex`.
        str(target.corpus),
        str(KEPT / target.name),
    ]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        _, ended, usage = os.wait4(process.pid, 0)
        process.returncode = status = os.waitstatus_to_exitcode(ended)
    text = log.read_text("utf-8", "replace")
    statistics = {name: int(number) for name, number in _STATISTIC.findall(text)}
    return Outcome(
        target,
        VERDICTS.get(status, "BROKEN"),
        statistics.get("number_of_executed_units", 0),
        usage.ru_utime + usage.ru_stime,
        len({file.name for file in target.corpus.iterdir()} - before),
        log,
    )


def print_table(outcomes: Sequence[Outcome]) -> None:
    """A row for each target, and one for all."""
    print(f"\n{'target':22} {'executions':>12} {'per core s':>12} {'new inputs':>10}  verdict")
    for each in outcomes:
        rate = each.executions / max(each.seconds, 1e-3)
        row = f"{each.executions:12,} {rate:12,.0f} {each.new_inputs:10}  {each.verdict}"
        print(f"{each.target.name:22} {row}")
    total = sum(each.executions for each in outcomes)
    seconds = sum(each.seconds for each in outcomes)
    print(f"{'all':22} {total:12,} {total / max(seconds, 1e-3):12,.0f}")


def report_broken(outcome: Outcome) -> None:
    """What was found, where it is, and how to see it again."""
    text = outcome.log.read_text("utf-8", "replace")
    written = re.findall(r"Test unit written to (\S+)", text)
    print(f"\n{outcome.target.name}: {outcome.verdict}; the whole log is {outcome.log}")
    telling = re.compile(r"a promise is broken|ERROR:|runtime error:|Error:|internal error")
    print("\n".join([line for line in text.splitlines() if telling.search(line)][:8]))
    for path in written:
        command = shlex.join([*outcome.target.command, *LIMITS, path])
        variables = (
            ""
            if outcome.target.command[0].endswith("fuzz")
            else (f"PYTHONPATH={environment()['PYTHONPATH']} ")
        )
        print(f"  input:     {path}\n  reproduce: {variables}{command}")
        print(f"  mended, it stays a test: cp {path} {KEPT / outcome.target.name}/")


def run(targets: Sequence[Target], arguments: argparse.Namespace) -> int:
    """All of them, again and again up to the executions asked for; 1 when a promise is broken."""
    total, in_all = 0, dict.fromkeys(targets, (0, 0.0, 0))
    while True:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            outcomes = list(pool.map(lambda each: run_target(each, arguments.seconds), targets))
        for each in outcomes:
            executions, seconds, new_inputs = in_all[each.target]
            in_all[each.target] = (
                executions + each.executions,
                seconds + each.seconds,
                new_inputs + each.new_inputs,
            )
        total += sum(each.executions for each in outcomes)
        broken = [outcome for outcome in outcomes if outcome.verdict != "ok"]
        if broken or total >= arguments.executions:
            break
        print(f"{total:,} of {arguments.executions:,} executions", flush=True)
    print_table([Outcome(e.target, e.verdict, *in_all[e.target], e.log) for e in outcomes])
    for outcome in broken:
        report_broken(outcome)
    return 1 if broken else 0


def reaching_more(target: Target, folder: Path) -> list[Path]:
    """Few inputs that together reach what the kept ones do not."""
    if not target.command[-1].startswith("--target="):  # atheris merges nothing, and finds fewer.
        return list(target.corpus.iterdir())
    subprocess.run(
        [*target.command, "-set_cover_merge=1", f"-max_len={MAX_BYTES}", str(folder)]
        + [str(KEPT / target.name), str(target.corpus)],
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
    )
    return list(folder.iterdir())


def keep(targets: Sequence[Target]) -> int:
    """Adds to the kept inputs, as far as there is room."""
    for target in targets:
        kept = KEPT / target.name
        with tempfile.TemporaryDirectory(dir=TREE) as folder:
            files = reaching_more(target, Path(folder))
            files.sort(key=lambda file: (file.stat().st_size, file.name))
            room = max(MOST_KEPT - len(list(kept.iterdir())), 0)
            for number in range(min(room, len(files))):
                file = files[number * len(files) // min(room, len(files))]
                shutil.copyfile(file, kept / file.name)
        print(f"{target.name:22} {len(list(kept.iterdir())):4} inputs kept", flush=True)
    return 0


def main() -> int:
    """Reads the arguments of scripts/fuzz.sh."""
    parser = argparse.ArgumentParser()
    parser.add_argument("action", choices=("run", "keep", "list"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--executions", type=int, default=0)
    parser.add_argument("--python", type=Path, required=True)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    for folder in (TREE / "logs", FOUND):
        folder.mkdir(parents=True, exist_ok=True)
    programs = list(all_targets(arguments.python))
    targets = [target for _, some in programs for target in some]
    wanted = arguments.only.split() or [target.name for target in targets]
    if unknown := set(wanted) - {target.name for target in targets}:
        listed = " ".join(target.name for target in targets)
        print(f"error: got {' '.join(sorted(unknown))}, expected of: {listed}", file=sys.stderr)
        return 2
    targets = [target for target in targets if target.name in wanted]
    if arguments.action == "list":
        print("\n".join(target.name for target in targets))
        return 0
    make_corpus(programs)
    return keep(targets) if arguments.action == "keep" else run(targets, arguments)


if __name__ == "__main__":
    sys.exit(main())
