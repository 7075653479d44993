"""Run the tests of a GoogleTest program in few processes and say what each of them took.

All tests of a shard share a process, as its start costs more than most tests. A crash or a test
that hangs ends that process; the rest of the shard goes on in a new one. Tests named by --alone get
a process each: what they look at belongs to the process as a whole.

Usage: run_gtest.py PROGRAM [--shard I/N] [--alone PATTERNS] [--limit SECONDS] [--report FILE]
FILE gets one JSON line per test: name, result (passed, failed, skipped), seconds.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

STARTED = re.compile(rb"^\[ RUN      \] (\S+)")
ENDED = re.compile(rb"^\[ +(OK|FAILED|SKIPPED) +\] ([^\s,]+).*\((\d+) ms\)")
RESULTS = {b"OK": "passed", b"FAILED": "failed", b"SKIPPED": "skipped"}


@dataclass
class Tally:
    """What has become of the tests so far: name -> (result, seconds)."""

    results: dict[str, tuple[str, float]] = field(default_factory=dict)

    def unfinished(self, names: list[str]) -> list[str]:
        """Those of `names` without a result, in their order."""
        return [name for name in names if name not in self.results]

    def failed(self) -> list[str]:
        """Names of failed tests."""
        return [name for name, (result, _) in self.results.items() if result == "failed"]


def list_tests(program: str) -> list[str]:
    """Full names of all enabled tests of a program."""
    listing = subprocess.run(
        [program, "--gtest_list_tests"], capture_output=True, text=True, check=True, timeout=120
    ).stdout
    names, suite = [], ""
    for line in listing.splitlines():
        text = line.split("#")[0].rstrip()
        if not text.startswith(" "):
            suite = text if text.endswith(".") else ""
        elif suite and "DISABLED_" not in suite + text:
            names.append(suite + text.strip())
    return names


def shard_of(names: list[str], shard: str) -> list[str]:
    """Every N-th test from the I-th on; I counts from 1."""
    index, count = (int(part) for part in shard.split("/"))
    return names[index - 1 :: count]


def run_process(program: str, names: list[str], limit_s: float, tally: Tally) -> None:
    """Run `names` in one process; a test that is running when it ends early has failed."""
    with tempfile.NamedTemporaryFile("w", suffix=".flags") as flags:
        flags.write("--gtest_filter=" + ":".join(names) + "\n")
        flags.flush()
        process = subprocess.Popen(
            [program, f"--gtest_flagfile={flags.name}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        running, since, hung = _follow(process, limit_s, tally)
        if hung:
            print(where_threads_wait(process.pid), flush=True)
            os.killpg(process.pid, signal.SIGABRT)
            time_left = 10.0
            try:
                process.wait(time_left)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    if running is not None:
        why = f"no end after {limit_s:g} s" if hung else f"the process ended with {code}"
        print(f"[  FAILED  ] {running} ({why})", flush=True)
        tally.results[running] = ("failed", time.monotonic() - since)
    elif code != 0 and not any(name in tally.failed() for name in names):
        # A leak check at the end of the process, say: no single test is to blame.
        print(f"[  FAILED  ] the process of {len(names)} tests ended with {code}", flush=True)
        tally.results[f"{names[0]} and {len(names) - 1} more, at their end"] = ("failed", 0.0)


def where_threads_wait(session: int) -> str:
    """A line per thread of a session: its process, name, state, and the system call it is in."""
    lines = [f"Threads of session {session}: process, name, state, system call with arguments"]
    for stat in sorted(Path("/proc").glob("[0-9]*/task/[0-9]*/stat")):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
            fields = rest.split()
            if int(fields[3]) != session:
                continue
            call = (stat.parent / "syscall").read_text().strip()
        except (OSError, IndexError, ValueError):
            continue  # It has ended, or is another user's.
        lines.append(f"  {stat.parts[-4]} {name} {fields[0]} {call}")
    return "\n".join(lines)


def _follow(
    process: subprocess.Popen[bytes], limit_s: float, tally: Tally
) -> tuple[str | None, float, bool]:
    """Pass the output on; returns the test that was running at its end, since when, if it hung."""
    assert process.stdout is not None
    running: str | None = None
    since = time.monotonic()
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while True:
            left = since + limit_s - time.monotonic()
            if left <= 0:
                return running, since, True
            if not selector.select(left):
                continue
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return running, since, False
            sys.stdout.buffer.write(chunk)
            sys.stdout.flush()
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                if match := STARTED.match(line):
                    running, since = match[1].decode(), time.monotonic()
                elif (match := ENDED.match(line)) and match[2].decode() == running:
                    tally.results[running] = (RESULTS[match[1]], int(match[3]) / 1000)
                    running, since = None, time.monotonic()


def run(program: str, names: list[str], alone: list[str], limit_s: float) -> Tally:
    """Run all: those that match a pattern of `alone` by themselves, the others together."""
    tally = Tally()
    single = [n for n in names if any(fnmatch.fnmatchcase(n, pattern) for pattern in alone)]
    while together := tally.unfinished([n for n in names if n not in set(single)]):
        before = len(together)
        run_process(program, together, limit_s, tally)
        if len(tally.unfinished(together)) == before:
            print(f"{program} ran none of {before} tests", flush=True)
            tally.results |= dict.fromkeys(together, ("failed", 0.0))
    for name in single:
        run_process(program, [name], limit_s, tally)
        tally.results.setdefault(name, ("failed", 0.0))
    return tally


def main() -> int:
    """Run a shard; exit code 1 if a test failed, 4 if there is none."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("program")
    parser.add_argument("--shard", default="1/1")
    parser.add_argument("--alone", default="", help="patterns, separated by colons")
    parser.add_argument("--limit", type=float, default=300, help="seconds a test may take")
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    names = shard_of(list_tests(arguments.program), arguments.shard)
    if not names:
        print(f"{arguments.program} has no tests in shard {arguments.shard}")
        return 4
    alone = [pattern for pattern in arguments.alone.split(":") if pattern]
    tally = run(arguments.program, names, alone, arguments.limit)
    if arguments.report:
        arguments.report.parent.mkdir(parents=True, exist_ok=True)
        with arguments.report.open("w") as report:
            for name, (result, seconds) in tally.results.items():
                row = {"name": name, "result": result, "seconds": seconds}
                report.write(json.dumps(row) + "\n")
    failed = tally.failed()
    print(f"{len(tally.results)} tests of {Path(arguments.program).name}, {len(failed)} failed")
    for name in failed:
        print(f"failed: {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
