"""scripts/check_python_imports.py passes on a good tree and names each import that is wrong."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

GOOD_TREE = {
    "__init__.py": (
        "from typing import TYPE_CHECKING\n"
        "from ._moved_modules import MOVED\n"
        "if TYPE_CHECKING:\n"
        "    from .training.loader import *\n"
    ),
    "_moved_modules.py": "MOVED = {}\n",
    "errors.py": "from . import _C\n",
    "reduce_op.py": "import enum\n",
    "job/__init__.py": "",
    "job/rendezvous_wire.py": "import struct\n",
    "job/nccl_folders.py": "import os\n",
    "job/topology.py": "import torch\nfrom .. import _C\n",
    "job/init.py": "from ..errors import MydistError\nfrom . import rendezvous_wire, topology\n",
    "collectives/__init__.py": "from .calls import allreduce\n",
    "collectives/calls.py": "from ..job import topology\nfrom ..reduce_op import Sum\n",
    "optim/__init__.py": "",
    "optim/steps.py": "from ..collectives import allreduce\n",
    "training/__init__.py": "",
    "training/loader.py": "def load():\n    from ..optim import steps\n",
    "bench/__init__.py": "",
    "../../launcher/cli.py": (
        "import argparse\n"
        "import yaml\n"
        "import mydist.job.rendezvous_wire as wire\n"
        "from mydist.job.nccl_folders import nccl_folders\n"
        "from mydist.launcher import hosts\n"
    ),
    "bench/__main__.py": "import mydist as md\nfrom mydist.training import loader\n",
}


def run_check(root: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "check_python_imports.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def check(root: Path, files: dict[str, str]) -> tuple[int, list[str]]:
    """The exit code and the lines for the good tree with other files in it."""
    for name, text in (GOOD_TREE | files).items():
        path = root / "python" / "mydist" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    result = run_check(root)
    assert result.stderr == ""
    *lines, total = result.stdout.splitlines()
    assert total == f"check_python_imports: {len(lines)} violations"
    return result.returncode, lines


def test_a_good_tree_passes(tmp_path: Path) -> None:
    assert check(tmp_path, {}) == (0, [])


def test_this_tree_passes() -> None:
    result = run_check(ROOT)
    assert (result.returncode, result.stdout) == (0, "check_python_imports: 0 violations\n")


BAD_IMPORTS = [
    ("errors.py", "from .reduce_op import Sum", "errors may not import reduce_op"),
    ("job/x.py", "from ..collectives import calls", "job may not import collectives"),
    ("job/x.py", "def f():\n    from ..collectives import calls", "job may not import collectives"),
    ("job/x.py", "class C:\n    import mydist.optim.steps", "job may not import optim"),
    ("job/x.py", "import mydist", "job may not import mydist/__init__"),
    ("job/x.py", "from mydist.launcher import hosts", "job may not import launcher"),
    ("training/x.py", "from ..bench import peers", "training may not import bench"),
    ("training/x.py", "try:\n    import mydist as md\nfinally:\n    pass", "mydist/__init__"),
    ("optim/x.py", "if not TYPE_CHECKING:\n    from .. import training", "not import training"),
    ("bench/x.py", "import mydist.launcher", "bench may not import launcher"),
    ("hall/x.py", "from .. import errors", "mydist.hall has no floor in FLOORS"),
    ("job/rendezvous_wire.py", "import torch", "mydist.job.rendezvous_wire works without torch"),
    ("job/nccl_folders.py", "from . import topology", "mydist.job.nccl_folders works without"),
    ("job/__init__.py", "from .topology import rank", "mydist.job works without torch"),
    ("__init__.py", "def f():\n    import torch", "mydist works without torch"),
    ("../../launcher/x.py", "import torch", "the launcher uses the standard library and"),
    ("../../launcher/x.py", "def f():\n    import numpy", "the launcher uses the standard"),
    ("../../launcher/x.py", "from mydist import _C", "the launcher uses"),
    ("../../launcher/x.py", "import mydist.bench", "the launcher uses"),
    ("../../launcher/x.py", "from mydist.job import init", "the launcher uses"),
]


@pytest.mark.parametrize(("file", "text", "message"), BAD_IMPORTS)
def test_a_wrong_import_is_named(file: str, text: str, message: str, tmp_path: Path) -> None:
    code, lines = check(tmp_path, {file: text + "\n"})
    assert code == 1
    (line,) = lines
    number = next(i for i, each in enumerate(text.splitlines(), 1) if "import" in each)
    where = f"python/mydist/{file}".replace("python/mydist/../../", "")
    assert line.startswith(f"{where}:{number}: import ")
    assert message in line


CIRCLES = [
    {"job/a.py": "from . import b", "job/b.py": "from . import a"},
    {"job/a.py": "from . import b", "job/b.py": "def f():\n    from .a import g"},
    {"collectives/calls.py": "from . import allreduce"},
]


@pytest.mark.parametrize("files", CIRCLES)
def test_a_circle_is_shown(files: dict[str, str], tmp_path: Path) -> None:
    code, lines = check(tmp_path, files)
    assert code == 1
    (line,) = lines
    modules = line.removeprefix("import circle: ").split(" -> ")
    assert modules[0] == modules[-1]
    for name in files:
        assert f"mydist.{name.removesuffix('.py').replace('/', '.')}" in modules


def test_each_of_two_circles_is_shown(tmp_path: Path) -> None:
    code, lines = check(tmp_path, CIRCLES[0] | CIRCLES[2])
    assert code == 1
    assert lines == [
        "import circle: mydist.collectives -> mydist.collectives.calls -> mydist.collectives",
        "import circle: mydist.job.a -> mydist.job.b -> mydist.job.a",
    ]


def test_imports_for_type_checkers_do_not_count(tmp_path: Path) -> None:
    block = "if typing.TYPE_CHECKING:\n    from .b import B\n    from ..bench import peers\n"
    files = {"job/a.py": f"import typing\n{block}", "job/b.py": "from . import a\n"}
    assert check(tmp_path, files) == (0, [])
