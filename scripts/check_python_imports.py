"""Check which room imports which in python/mydist and launcher: downwards, in no circle.

    bench, horovod -> mydist/__init__ -> elastic -> training -> optim -> ps -> collectives ->
    c10d -> job -> errors, _C

An import inside a function counts, because a late import only hides a circle. An import for type
checkers does not count. Python loads the package around a module before the module; this counts
only where an import statement names the package. The launcher imports the standard library, yaml,
its own modules and those of LAUNCHER_SHARED.

Usage: check_python_imports.py [ROOT]. Prints one line per violation; exit code 1 if there is any.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from violations import report, tree

# The rooms of python/mydist from the ground up: packages, and modules beside them. A room imports
# from the floors below its own. NAMES is mydist/__init__ itself.
NAMES = ""
FLOORS: tuple[tuple[str, ...], ...] = (
    ("_C", "_c10d", "_moved_modules", "_ps", "_torch_version"),
    ("errors", "reduce_op"),
    ("job",),
    ("c10d",),
    ("codecs",),
    ("collectives",),
    ("ps",),
    ("optim",),
    ("training",),
    ("elastic",),
    (NAMES,),
    ("bench", "debug", "horovod", "launcher"),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
COMPILED = {"mydist._C", "mydist._c10d", "mydist._ps"}
# What the launcher shares with the ranks; these import only the standard library themselves.
LAUNCHER_SHARED = {
    "mydist._torch_version",
    "mydist.job.horovod_path",
    "mydist.job.nccl_folders",
    "mydist.job.rendezvous_wire",
}
# What the launcher loads, on hosts without torch.
WITHOUT_TORCH = {"mydist", "mydist._moved_modules", "mydist.job", *LAUNCHER_SHARED}
# What reads the dumps of a job, perhaps elsewhere.
WITHOUT_TORCH |= {"mydist.debug", "mydist.debug.dumps", "mydist.debug.parting"}
WITHOUT_TORCH |= {"mydist.debug.rank_text", "mydist.debug.told", "mydist.debug.verdict"}


@dataclass(frozen=True)
class Import:
    """One import of one module: where it stands, and what it names."""

    source: str  # The dotted name of the module that imports.
    where: str  # File and line.
    target: str  # A dotted name.

    def __str__(self) -> str:
        return f"{self.where}: import {self.target}"


def is_for_type_checkers(node: ast.AST) -> bool:
    """Whether it is `if TYPE_CHECKING:`."""
    tests = ("TYPE_CHECKING", "typing.TYPE_CHECKING")
    return isinstance(node, ast.If) and ast.unparse(node.test) in tests


def import_statements(nodes: Iterable[ast.AST]) -> Iterator[ast.Import | ast.ImportFrom]:
    """The import statements that run, also those inside functions."""
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, ast.If) and is_for_type_checkers(node):
            yield from import_statements(node.orelse)
        else:
            yield from import_statements(ast.iter_child_nodes(node))


def named_by(node: ast.Import | ast.ImportFrom, package: str, modules: set[str]) -> Iterator[str]:
    """The dotted names of the modules that an import statement in `package` names."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
        return
    parents = package.split(".")
    above = parents[: len(parents) - node.level + 1] if node.level else []
    base = ".".join([*above, *([node.module] if node.module else [])])
    for alias in node.names:
        module = f"{base}.{alias.name}"
        yield module if module in modules or module in COMPILED else base


def read_imports(root: Path) -> tuple[set[str], list[Import]]:
    """All modules of the package, its launcher among them, and the imports in them."""
    files: dict[str, Path] = {}
    for folder, package in (("python/mydist", "mydist"), ("launcher", "mydist.launcher")):
        for path in sorted((root / folder).rglob("*.py")):
            parts = [package, *path.relative_to(root / folder).with_suffix("").parts]
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    imports = []
    for module, path in files.items():
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        for node in import_statements([ast.parse(path.read_text(), str(path))]):
            where = f"{path.relative_to(root).as_posix()}:{node.lineno}"
            for target in dict.fromkeys(named_by(node, package, set(files))):
                imports.append(Import(module, where, target))
    return set(files), imports


def room_of(module: str) -> str:
    """The part of a dotted name after mydist."""
    return module.split(".")[1] if "." in module else NAMES


def floor_problem(item: Import) -> str | None:
    """Why the import is against the order of FLOORS or of WITHOUT_TORCH; None if it is not."""
    project = item.target.split(".")[0]
    light = item.target in WITHOUT_TORCH or project in sys.stdlib_module_names
    if item.source in WITHOUT_TORCH and not light:
        return f"{item.source} works without torch, for the launcher"
    source, target = room_of(item.source), room_of(item.target)
    if source == "launcher":
        shared = item.target in {"mydist", "yaml", *LAUNCHER_SHARED} or target == "launcher"
        if shared or project in sys.stdlib_module_names:
            return None
        return "the launcher uses the standard library and mydist.launcher only"
    if project != "mydist":
        return None
    for room in (source, target):
        if room not in FLOOR_OF:
            return f"mydist.{room} has no floor in FLOORS"
    if source == target or FLOOR_OF[target] < FLOOR_OF[source]:
        return None
    return f"{source or 'mydist/__init__'} may not import {target or 'mydist/__init__'}"


def circles(modules: set[str], imports: list[Import]) -> Iterator[str]:
    """One line per circle of modules, until what is left has none."""
    used: dict[str, set[str]] = {module: set() for module in modules}
    for item in imports:
        if item.target in modules and item.target != item.source:
            used[item.source].add(item.target)
    while True:
        try:
            TopologicalSorter({name: sorted(used[name]) for name in sorted(used)}).prepare()
            return
        except CycleError as error:
            circle: list[str] = error.args[1][::-1]
            used[circle[0]].discard(circle[1])
            yield f"import circle: {' -> '.join(circle)}"


def problems(root: Path) -> Iterator[str]:
    """One line per wrong import, and per circle."""
    modules, imports = read_imports(root)
    yield from (f"{item}: {problem}" for item in imports if (problem := floor_problem(item)))
    yield from circles(modules, imports)


if __name__ == "__main__":
    sys.exit(report("check_python_imports", problems(tree())))
