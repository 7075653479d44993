"""The program that a server runs: `mydist-server`, a part of the package."""

from __future__ import annotations

import os
from pathlib import Path

from mydist.launcher.check_build import library_path


def program_path() -> Path:
    """Where it is in this installation, if it was built."""
    return library_path().parents[1] / "bin" / "mydist-server"


def has_program() -> bool:
    """Whether it can be run."""
    path = program_path()
    return path.is_file() and os.access(path, os.X_OK)
