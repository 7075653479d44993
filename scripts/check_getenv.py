"""Check that C++ reads the environment in csrc/config only, so that every knob is in one struct.

Usage: check_getenv.py [ROOT]. Prints one line per violation; exit code 1 if there is any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from violations import report, tree

READS = re.compile(r"\b(secure_)?getenv\s*\(|\benviron\b")
HOME = "csrc/config/"


def problems(root: Path) -> Iterator[str]:
    """One line per place outside csrc/config that reads the environment; comments are skipped."""
    for path in sorted((root / "csrc").rglob("*")):
        where = path.relative_to(root).as_posix()
        if path.suffix not in {".h", ".cc", ".cu", ".cuh"} or where.startswith(HOME):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if READS.search(line.split("//", 1)[0]):
                yield f"{where}:{number}: reads the environment; add a field to csrc/config instead"


if __name__ == "__main__":
    sys.exit(report("check_getenv", problems(tree())))
