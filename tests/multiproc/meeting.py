"""A barrier between the ranks of a machine that mydist has no part in."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import mydist as md


def meet(directory: Path, place: str) -> None:
    """Returns when all ranks are here: each leaves a file named after the place."""
    (directory / f"{place}.{md.rank()}").touch()
    deadline = time.monotonic() + 30
    while len(list(directory.glob(f"{place}.*"))) < md.size():
        assert time.monotonic() < deadline, f"not all ranks came to {place}"
        threading.Event().wait(0.01)
