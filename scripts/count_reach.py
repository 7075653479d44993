"""Count the existing files that a change touches outside its own, and fail above a limit.

A transport, an algorithm or a setting plugs in: it brings files of its own, adds a row, and leaves
the rest alone. Files that the change adds are its own, wherever they are.

Usage: count_reach.py [--limit N] [--own PATH]... RANGE   (RANGE as for git diff, such as main...)
Prints the files; exit code 1 above the limit, 2 when git does not know the range.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import PurePosixPath

LIMIT = 5


def touched(revisions: str) -> list[str]:
    """Existing files that the range changes, removes or renames, by their old names."""
    command = ["git", "diff", "--name-status", "--find-renames", revisions]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stderr.strip(), file=sys.stderr)
        raise SystemExit(2)
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    return [row[1] for row in rows if not row[0].startswith("A")]


def outside(files: list[str], own: list[str]) -> list[str]:
    """Those that lie neither in nor below one of the paths."""
    return [file for file in files if not any(PurePosixPath(file).is_relative_to(p) for p in own)]


def main(arguments: list[str]) -> int:
    """Count, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=LIMIT, help="files allowed [%(default)s]")
    parser.add_argument("--own", action="append", default=[], help="a file or folder of its own")
    parser.add_argument("revisions", metavar="RANGE")
    given = parser.parse_args(arguments)
    found = outside(touched(given.revisions), given.own)
    for file in found:
        print(f"  {file}")
    print(f"{len(found)} existing files touched outside its own, at most {given.limit} allowed")
    return 0 if len(found) <= given.limit else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
