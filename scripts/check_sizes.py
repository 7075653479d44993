"""Check file lengths, function lengths and banned names.

A file stays under 500 lines and a function under 70. Manager, Helper, Utils and Common say
nothing about what a thing is, so no file, class or function carries them in its name.

Usage: check_sizes.py [ROOT]. Prints one line per violation; exit code 1 if there is any.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from violations import report, tree

FOLDERS = ("csrc", "python", "launcher", "tests", "examples", "benchmarks", "scripts", "cmake")
CPP_SUFFIXES = {".h", ".cc", ".cu", ".cuh"}
SUFFIXES = CPP_SUFFIXES | {".py", ".pyi", ".sh", ".cmake"}
MAX_FILE_LINES = 499
MAX_FUNCTION_LINES = 69

# Names that programs written for Horovod import.
FOREIGN = {"python/mydist/horovod/common/util.py"}
BANNED_CAMEL = re.compile(r"(Manager|Helper|Utils?|Common)(?=[A-Z0-9_]|s?\b)")
BANNED_SNAKE = re.compile(r"(^|_)(manager|helper|util|common)s?($|_)")
CPP_DEFINITION = re.compile(r"^\s*(?:class|struct|union|enum(?:\s+class)?|namespace)\s+(.*)")
# With the house format a function at namespace level begins and ends in column 0.
CPP_NOT_A_FUNCTION = re.compile(
    r"^(namespace|class|struct|union|enum|extern|using|typedef|template)\b|^\W"
)


def is_banned(name: str) -> bool:
    """Whether a CamelCase or snake_case name contains a banned word."""
    return bool(BANNED_CAMEL.search(name) or BANNED_SNAKE.search(name))


def cpp_functions(lines: list[str]) -> Iterator[tuple[int, int]]:
    """First line number and length of every function defined at namespace level."""
    start: int | None = None
    opened = False
    for number, line in enumerate(lines, 1):
        if not opened and line[:1].strip() and not CPP_NOT_A_FUNCTION.match(line):
            start = number
        if start is None:
            continue
        if opened and line.startswith("}"):
            yield start, number - start + 1
            start, opened = None, False
        elif not opened and line.rstrip().endswith("{"):
            opened = True
        elif not opened and line.rstrip().endswith((";", "}")):
            start = None  # A declaration or a one-line definition.


def cpp_problems(where: str, text: str) -> Iterator[str]:
    """Violations inside one C++ file."""
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        match = CPP_DEFINITION.match(line)
        for word in (
            re.findall(r"\w+", re.split(r"(?<!:):(?!:)", match.group(1))[0]) if match else []
        ):
            if is_banned(word):
                yield f"{where}:{number}: the name {word} is banned; say what the thing is"
    for number, length in cpp_functions(lines):
        if length > MAX_FUNCTION_LINES:
            yield f"{where}:{number}: function of {length} lines, allowed are {MAX_FUNCTION_LINES}"


def python_problems(where: str, text: str) -> Iterator[str]:
    """Violations inside one Python file."""
    for node in ast.walk(ast.parse(text, where)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        if is_banned(node.name):
            yield f"{where}:{node.lineno}: the name {node.name} is banned; say what the thing is"
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        if not isinstance(node, ast.ClassDef) and length > MAX_FUNCTION_LINES:
            yield (
                f"{where}:{node.lineno}: function {node.name} of {length} lines, "
                f"allowed are {MAX_FUNCTION_LINES}"
            )


def file_problems(path: Path, where: str) -> Iterator[str]:
    """Violations of one file, its name included."""
    if is_banned(path.stem) and where not in FOREIGN:
        yield f"{where}: the file name is banned; name the one noun inside"
    text = path.read_text()
    count = len(text.splitlines())
    if count > MAX_FILE_LINES:
        yield f"{where}: file of {count} lines, allowed are {MAX_FILE_LINES}"
    if path.suffix in CPP_SUFFIXES:
        yield from cpp_problems(where, text)
    elif path.suffix == ".py":
        yield from python_problems(where, text)


def problems(root: Path) -> Iterator[str]:
    """Violations of all files that are looked at."""
    files = [path for folder in FOLDERS for path in sorted((root / folder).rglob("*"))]
    for path in [*files, *sorted(root.glob("*.py"))]:
        if path.is_file() and (path.suffix in SUFFIXES or path.name == "CMakeLists.txt"):
            yield from file_problems(path, path.relative_to(root).as_posix())


if __name__ == "__main__":
    sys.exit(report("check_sizes", problems(tree())))
