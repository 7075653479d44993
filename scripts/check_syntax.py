"""Have the compiler of a build tree check sources, with their flags, without producing anything.

Usage: check_syntax.py TREE FOLDER...   Exit code 1 if a file does not compile, or none is found.
A tree with MYDIST_UNITY compiles units of several files: those with a file below a folder count.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def commands(tree: Path, folders: list[str]) -> list[tuple[str, list[str], str]]:
    """(file, command, folder to run it in) of every C++ source or unit below the folders."""
    found = []
    for entry in json.loads((tree / "compile_commands.json").read_text()):
        source = Path(entry["file"]).resolve()
        below = [ROOT / folder for folder in folders]
        files = [file for file in files_of(source) if any(map(file.is_relative_to, below))]
        if not files:
            continue
        words = shlex.split(entry["command"])
        start = next(i for i, word in enumerate(words) if "clang" in word or "++" in word)
        words = words[start:]  # Without ccache.
        cut = words.index("-o")
        names = ", ".join(str(file.relative_to(ROOT)) for file in files)
        found.append((names, words[:cut] + words[cut + 2 :], entry["directory"]))
    return found


def files_of(source: Path) -> list[Path]:
    """The source itself, or what a unit that CMake has written includes."""
    if source.name.startswith("unity_"):
        return [Path(file) for file in re.findall(r'#include "(.*\.cc)"', source.read_text())]
    return [source] if source.suffix == ".cc" else []


def main(arguments: list[str]) -> int:
    """Check all files, as many at a time as there are cores."""
    found = commands(Path(arguments[0]), arguments[1:])

    def check(row: tuple[str, list[str], str]) -> bool:
        file, command, folder = row
        done = subprocess.run(
            [*command, "-fsyntax-only"], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode or done.stderr:
            print(f"{file}:\n{done.stderr}", flush=True)
        return done.returncode == 0

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        good = list(pool.map(check, found))
    print(f"check_syntax: {len(good)} files or units, {good.count(False)} of them fail")
    return 0 if good and all(good) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
