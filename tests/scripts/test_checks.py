"""The source checks of scripts/: each passes on a good tree and fails on each bad input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


def run_check(name: str, root: Path) -> subprocess.CompletedProcess[str]:
    """Run scripts/<name>.py on the tree at root."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def write(root: Path, files: dict[str, str]) -> None:
    """Create files below root, folders included."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


GOOD_TREE = {
    "csrc/base/status.h": "#pragma once\n#include <string>\n",
    "csrc/world/topology.h": '#include "base/status.h"\n',
    "csrc/config/config.h": '#include "base/status.h"\n',
    "csrc/config/config.cc": 'const char* Read() { return getenv("MYDIST_LOG_LEVEL"); }\n',
    "csrc/timeline/event.h": '#include "base/status.h"\n',
    "csrc/transport/control_plane.h": '#include "world/topology.h"\n',
    "csrc/transport/factory.h": '#include "config/config.h"\n',
    "csrc/transport/local/local_plane.h": '#include "transport/control_plane.h"\n',
    "csrc/transport/mpi/mpi_plane.cc": '#include <mpi.h>\n#include "transport/factory.h"\n',
    "csrc/transport/gloo/gloo_plane.cc": '#include <gloo/context.h>\n#include "gloo/config.h"\n',
    "csrc/controller/negotiator.h": '#include "transport/control_plane.h"\n',
    "csrc/algorithms/collectives.h": '#include "transport/factory.h"\n',
    "csrc/gpu/kernels/convert.cu": "#include <cuda_runtime.h>\n",
    "csrc/engine/engine.h": (
        '#include "controller/negotiator.h"\n#include "algorithms/collectives.h"\n'
    ),
    "csrc/job/process.cc": '#include "engine/engine.h"\n#include "mydist/build_config.h"\n',
    "csrc/torch/module.cc": '#include <torch/extension.h>\n#include "base/status.h"\n',
    "python/mydist/__init__.py": "import torch\n",
}


@pytest.mark.parametrize("check", ["check_layers", "check_sizes"])
def test_good_tree_passes(check: str, tmp_path: Path) -> None:
    write(tmp_path, GOOD_TREE)
    result = run_check(check, tmp_path)
    assert (result.returncode, result.stdout) == (0, f"{check}: 0 violations\n"), result.stderr


BAD_LAYERS = [
    row.split(" | ")
    for row in r"""
csrc/base/log.cc | #include "world/topology.h" | base may not include world
csrc/world/x.h | #include "config/config.h" | world may not include config
csrc/config/x.cc | #include "controller/negotiator.h" | config may not include controller
csrc/timeline/x.cc | #include "engine/engine.h" | timeline may not include engine
csrc/controller/x.cc | #include "algorithms/collectives.h" | controller may not include algorithms
csrc/controller/x.cc | #include "transport/factory.h" | controller may not include transport
csrc/algorithms/x.cc | #include "controller/negotiator.h" | algorithms may not include controller
csrc/algorithms/shm/x.cc | #include "controller/negotiator.h" | algorithms may not include
csrc/engine/x.cc | #include "torch/module.cc" | engine may not include torch
csrc/engine/x.cc | #include "transport/local/local_plane.h" | only transport/local may include
csrc/transport/x.cc | #include "transport/local/local_plane.h" | only transport/local may include
csrc/transport/mpi/x.cc | #include "transport/local/local_plane.h" | only transport/local may
csrc/transport/mpi/x.cc | #include "controller/negotiator.h" | transport may not include controller
csrc/transport/gloo/x.cc | #include "engine/engine.h" | transport may not include engine
csrc/hall/x.cc | #include "base/status.h" | csrc/hall is no room
csrc/base/x.cc | #include "status.h" | write includes relative to csrc
csrc/base/x.cc | #include "../world/nothing.h" | write includes relative to csrc
csrc/engine/x.cc | #include <torch/extension.h> | is for csrc/torch/ only
csrc/engine/x.cc | #include <Python.h> | is for csrc/torch/ only
csrc/base/x.cc | #  include <mpi.h> | is for csrc/transport/mpi/ only
csrc/algorithms/x.cc | #include "gloo/config.h" | is for csrc/transport/gloo/ only
csrc/transport/mpi/x.cc | #include <gloo/context.h> | is for csrc/transport/gloo/ only
csrc/torch/x.cc | #include <cuda_runtime.h> | is for csrc/gpu/ only
""".strip().splitlines()
]


@pytest.mark.parametrize(("file", "text", "message"), BAD_LAYERS)
def test_layer_violation_fails(file: str, text: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, GOOD_TREE | {file: text + "\n"})
    result = run_check("check_layers", tmp_path)
    assert result.returncode == 1, result.stdout
    assert f"{file}:" in result.stdout
    assert message in result.stdout


LONG_CPP_FUNCTION = "Engine::Engine(int a,\n    int b)\n    : a_(a) {\n" + "  ++a;\n" * 70 + "}\n"
LONG_PYTHON_FUNCTION = "def run() -> None:\n" + "    print()\n" * 70
BAD_SIZES = [
    ("csrc/base/x.h", "// line\n" * 500, "file of 500 lines, allowed are 499"),
    ("tests/python/test_x.py", "# line\n" * 500, "file of 500 lines, allowed are 499"),
    ("csrc/base/x.cc", LONG_CPP_FUNCTION, ":1: function of 74 lines"),
    ("python/mydist/x.py", LONG_PYTHON_FUNCTION, ":1: function run of 71 lines"),
    ("csrc/base/x.h", "class TensorManager {};", "the name TensorManager is banned"),
    ("csrc/base/x.h", "struct MYDIST_EXPORT ShapeHelper {};", "the name ShapeHelper is banned"),
    ("csrc/base/x.h", "namespace mydist::StringUtils {}", "the name StringUtils is banned"),
    ("python/mydist/x.py", "class CommonThing: ...", "the name CommonThing is banned"),
    ("launcher/x.py", "def parse_helper(): ...", "the name parse_helper is banned"),
    ("python/mydist/utils.py", "", "the file name is banned"),
    ("csrc/base/string_util.cc", "", "the file name is banned"),
    ("scripts/common.sh", "", "the file name is banned"),
]


@pytest.mark.parametrize(("file", "text", "message"), BAD_SIZES)
def test_size_or_name_violation_fails(file: str, text: str, message: str, tmp_path: Path) -> None:
    write(tmp_path, GOOD_TREE | {file: text})
    result = run_check("check_sizes", tmp_path)
    assert result.returncode == 1, result.stdout
    assert f"{file}:" in result.stdout
    assert message in result.stdout


def test_names_that_only_look_banned_pass(tmp_path: Path) -> None:
    text = "from contextlib import contextmanager\nclass Commonwealth: ...\ndef utility(): ...\n"
    write(tmp_path, {"python/mydist/x.py": text, "csrc/base/x.h": "struct Commonality {};\n"})
    assert run_check("check_sizes", tmp_path).returncode == 0


def test_two_short_functions_are_not_one_long_function(tmp_path: Path) -> None:
    half = "int F(int a) {\n" + "  ++a;\n" * 40 + "}\n"
    declared = "int G(int a);\nint H() { return 1; }\n"
    write(tmp_path, {"csrc/base/x.cc": half + declared + half})
    assert run_check("check_sizes", tmp_path).returncode == 0


def test_a_template_of_a_long_struct_is_no_function(tmp_path: Path) -> None:
    template = "template <typename T>\n"
    body = "  int F();\n" * 80
    write(tmp_path, {"csrc/base/x.h": f"{template}struct S {{\n{body}}};\n"})
    assert run_check("check_sizes", tmp_path).returncode == 0
    write(tmp_path, {"csrc/base/x.h": f"{template}int G() {{\n{body}}}\n"})
    assert run_check("check_sizes", tmp_path).returncode == 1


BAD_GETENV = [
    ("csrc/runtime/x.cc", 'const char* v = std::getenv("HOME");'),
    ("csrc/base/x.cc", 'const char* v = secure_getenv("HOME");'),
    ("csrc/torch/x.cc", "extern char** environ;"),
]


@pytest.mark.parametrize(("file", "text"), BAD_GETENV)
def test_getenv_outside_config_fails(file: str, text: str, tmp_path: Path) -> None:
    write(tmp_path, GOOD_TREE | {file: "\n" + text + "\n"})
    result = run_check("check_layers", tmp_path)
    assert result.returncode == 1, result.stdout
    assert f"{file}:2: reads the environment" in result.stdout


def test_getenv_in_a_comment_passes(tmp_path: Path) -> None:
    write(tmp_path, {"csrc/runtime/x.cc": "// getenv() is called in csrc/config only\n"})
    assert run_check("check_layers", tmp_path).returncode == 0
