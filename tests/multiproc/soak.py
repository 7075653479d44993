"""Random operations for as long as asked: python -m multiproc.soak --minutes N [--seed S]

Each layout of ranks has an equal part of the time. The program is workers/random_soak.py.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from multiproc.job import WORKERS, job_environment, launcher_command
from multiproc.leftovers import unowned_arenas

_PROGRAM = str(WORKERS / "random_soak.py")
# What must be as it was. Memory is told, not judged: it grows by pieces that malloc keeps.
FLAT = ("descriptors", "threads", "shared_mappings")
# Else malloc keeps more free memory with each large block that it has seen, in each thread's part.
_MALLOC = {"MALLOC_TRIM_THRESHOLD_": "131072", "MALLOC_MMAP_THRESHOLD_": "131072"}


@dataclass(frozen=True)
class Layout:
    """Ranks, and what they talk over."""

    name: str
    np: int
    backend: str
    env: Mapping[str, str] = field(default_factory=dict)

    def command(self, seed: int, *options: str) -> list[str]:
        """Of the job."""
        return launcher_command(self.np, self.backend, _PROGRAM, "--seed", str(seed), *options)


LAYOUTS = (
    Layout("two", 2, "local"),
    Layout("four", 4, "local"),
    Layout("hosts", 4, "gloo", {"TEST_RANKS_PER_HOST": "2"}),
)


def outcome_in(output: str) -> dict[str, Any]:
    """What the program says at its end."""
    (line,) = [line for line in output.splitlines() if "SOAK {" in line]
    outcome: dict[str, Any] = json.loads(line.partition("SOAK ")[2])
    return outcome


def not_flat(outcome: Mapping[str, Any]) -> list[dict[str, int]]:
    """By rank: of what must not grow, what has grown in the last third."""
    return [
        {name: thirds[-1][name] for name in FLAT if thirds[-1][name] > 0}
        for thirds in outcome["growth"]
    ]


def soak(layout: Layout, seed: int, seconds: float) -> dict[str, Any] | None:
    """Runs the job in front of the user; None when it failed."""
    print(f"=== {layout.name}: seed {seed}, {seconds:.0f} s", flush=True)
    job = subprocess.Popen(
        layout.command(seed, "--seconds", str(seconds)),
        env=job_environment(_MALLOC | dict(layout.env)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    assert job.stdout
    output = ""
    for line in job.stdout:
        output += line if "SOAK {" in line else ""
        if "SOAK {" not in line:
            print(line, end="", flush=True)
    return outcome_in(output) if job.wait() == 0 else None


def print_outcome(layout: Layout, outcome: Mapping[str, Any]) -> None:
    """Two rows for each rank."""
    done = sum(outcome["counts"].values())
    print(f"\n{layout.name}: {outcome['steps']} steps, {done} operations in {outcome['seconds']} s")
    print("  " + ", ".join(f"{count} {name}" for name, count in outcome["counts"].items()))
    for rank, thirds in enumerate(outcome["growth"]):
        for which, growth in zip(("second", "last"), thirds, strict=True):
            in_10k = growth["private_bytes"] / 1024 * 10_000 / growth["steps"]
            row = ", ".join(f"{name} {more:+}" for name, more in growth.items() if name != "steps")
            print(f"  rank {rank}, {which} third, {growth['steps']} steps: {row}")
            print(f"    RSS {in_10k:+.0f} KiB in 10,000 steps")


def main(arguments: Sequence[str] | None = None) -> int:
    """All layouts; exit code 1 when a result was wrong, a job ended, or something grew."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 31))
    parser.add_argument("--only", default="", help=" ".join(each.name for each in LAYOUTS))
    options = parser.parse_args(arguments)
    names = {layout.name for layout in LAYOUTS}
    wanted = set(options.only.split()) or names
    if wanted - names:
        parser.error(f"got {options.only!r}, expected of: {' '.join(sorted(names))}")
    layouts = [layout for layout in LAYOUTS if layout.name in wanted]
    there = unowned_arenas()
    failed = []
    for layout in layouts:
        outcome = soak(layout, options.seed, 60 * options.minutes / len(layouts))
        if outcome is None:
            failed.append(f"{layout.name}: the job failed")
            continue
        print_outcome(layout, outcome)
        if any(not_flat(outcome)):
            failed.append(f"{layout.name}: grew: {not_flat(outcome)}")
    if left := unowned_arenas() - there:
        failed.append(f"left in /dev/shm: {' '.join(sorted(left))}")
    for text in failed:
        print(f"FAILED  {text}", file=sys.stderr)
    print(f"\nseed {options.seed}: {'FAILED' if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
