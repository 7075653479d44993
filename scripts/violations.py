"""How a check of the source tells what it found: a line per violation, and their number last."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path


def tree() -> Path:
    """The tree to check: the program's first argument, or the one this file is in."""
    return Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent


def report(check: str, problems: Iterable[str]) -> int:
    """Prints all; returns the exit code, 1 if there is any."""
    found = list(problems)
    for problem in found:
        print(problem)
    print(f"{check}: {len(found)} violations")
    return 1 if found else 0
