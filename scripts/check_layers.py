"""Check which room includes which: the floors of docs/architecture.md, for C++ includes.

A room of csrc may include what stands in its row of ROOMS and all that those may include. A
transport is included by nothing but itself. MPI, Gloo, CUDA, Python and torch headers stay in the
one folder that is about them. The environment is read in csrc/config only, so every knob is in one
struct; what runs inside mpirun has no knob.

Usage: check_layers.py [ROOT]. Prints one line per violation; exit code 1 if there is any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from violations import report, tree

READERS = ("config/", "transport/mpi/mpirun/")  # Of the environment.
READS_ENVIRONMENT = re.compile(r"\b(secure_)?getenv\s*\(|\benviron\b")
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')

# Room of csrc -> the rooms right below it.
ROOMS: dict[str, set[str]] = {
    "base": set(),
    "config": {"base"},
    "world": {"base"},
    "timeline": {"base"},
    "kernels": {"world"},
    "memory": {"kernels"},
    "transport": {"memory", "config"},
    "controller": {"world"},
    "algorithms": {"transport"},
    "gpu": {"algorithms"},
    "planner": {"algorithms"},
    "engine": {"planner", "controller", "timeline"},
    "job": {"engine"},
    "lanes": {"job"},
    "ps": {"memory", "config", "timeline"},
    "torch": {"lanes", "ps"},
}
# Headers that a room may include besides, by room.
EXTRA: dict[str, set[str]] = {
    # How the controller's messages travel, and where its votes are cast.
    "controller": {"transport/control_plane.h", "transport/vote_board.h"},
}
GENERATED_HEADERS = {"mydist/build_config.h"}

# Header of another project (regular expression) -> the places that may include it.
FOREIGN: list[tuple[re.Pattern[str], tuple[str, ...]]] = [
    (re.compile(r"^(torch|ATen|c10|pybind11)/|^Python\.h$"), ("torch/",)),
    (re.compile(r"^mpi(-ext)?\.h$"), ("transport/mpi/",)),
    (re.compile(r"^gloo/"), ("transport/gloo/",)),
    (re.compile(r"^(asio|openssl)(/|\.)"), ("ps/port/",)),
    (re.compile(r"^(cuda|nccl)[a-z_]*\.h$"), ("gpu/",)),
]


def rooms_below(room: str) -> set[str]:
    """The rooms that a room may include from, itself among them."""
    below = {room}
    for other in ROOMS.get(room, set()):
        below |= rooms_below(other)
    return below


def transport_of(path: str) -> str | None:
    """The transport that a path relative to csrc belongs to; None: to all of them, or to none."""
    parts = path.split("/")
    return parts[1] if parts[0] == "transport" and len(parts) > 2 else None


def quoted_problem(source: str, header: str, csrc: Path) -> str | None:
    """Why the file `source` may not include "header" (both relative to csrc); None if it may."""
    if header in GENERATED_HEADERS:
        return None
    if not (csrc / header).is_file():
        return "names no file below csrc; write includes relative to csrc"
    room, target = source.split("/")[0], header.split("/")[0]
    if room not in ROOMS:
        return f"csrc/{room} is no room; add it to ROOMS in scripts/check_layers.py"
    name = transport_of(header)
    if name is not None and name != transport_of(source):
        return f"only transport/{name} may include its own headers"
    if target in rooms_below(room) or header in EXTRA.get(room, set()):
        return None
    return f"{room} may not include {target}"


def foreign_problem(source: str, header: str) -> str | None:
    """Why the file `source` (relative to csrc) may not include <header>; None if it may."""
    for pattern, homes in FOREIGN:
        if pattern.search(header) and not source.startswith(homes):
            return f"<{header}> is for csrc/{' and csrc/'.join(homes)} only"
    return None


def is_foreign(header: str) -> bool:
    """Whether a header belongs to one of the projects of FOREIGN."""
    return any(pattern.search(header) for pattern, _ in FOREIGN)


def cpp_problems(root: Path) -> Iterator[str]:
    """Violations in csrc."""
    csrc = root / "csrc"
    for path in sorted(p for p in csrc.rglob("*") if p.suffix in {".h", ".cc", ".cu", ".cuh"}):
        source = path.relative_to(csrc).as_posix()
        for number, line in enumerate(path.read_text().splitlines(), 1):
            where, code = f"csrc/{source}:{number}", line.split("//", 1)[0]
            if READS_ENVIRONMENT.search(code) and not source.startswith(READERS):
                yield f"{where}: reads the environment; add a field to csrc/config instead"
            match = INCLUDE.match(line)
            if match is None:
                continue
            bracket, header = match.groups()
            ours = bracket == '"' and ((csrc / header).is_file() or not is_foreign(header))
            why = quoted_problem(source, header, csrc) if ours else foreign_problem(source, header)
            if why is not None:
                yield f"{where}: {match.group(0).strip()}: {why}"


if __name__ == "__main__":
    sys.exit(report("check_layers", cpp_problems(tree())))
