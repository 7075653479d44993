"""--check-build and --doctor: what the library says, and what is said without one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from running_job import Mydistrun

from mydist.job.nccl_folders import nccl_folders
from mydist.launcher.check_build import (
    check_build,
    format_build_report,
    format_torch,
    format_torch_backend,
    read_build_report,
)

REPORT = (
    '{"version": "1.2.3", "backends": ['
    '{"name": "mpi", "built": true, "available": true, "reason": "", "description": "MPI 5"},'
    '{"name": "gloo", "built": true, "available": false, "reason": "libgloo.so.0 is missing",'
    ' "description": ""},'
    '{"name": "nccl", "built": false, "available": false, "reason": "not built: no nvcc was found",'
    ' "description": ""}]}'
)


def build_library(directory: Path, source: str) -> Path:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    (directory / "lib.c").write_text(source)
    library = directory / "lib.so"
    command = [compiler, "-shared", "-fPIC", "-o", str(library), str(directory / "lib.c")]
    subprocess.run(command, check=True)
    return library


def test_table(tmp_path: Path) -> None:
    quoted = REPORT.replace('"', '\\"')
    library = build_library(
        tmp_path, f'const char* mydist_build_report(void) {{ return "{quoted}"; }}'
    )
    written: list[str] = []
    assert check_build(written.append, library) == 0
    assert written[:1] == [
        "mydist 1.2.3\n\nBackends:\n"
        "  [x] mpi   MPI 5\n"
        "  [ ] gloo  libgloo.so.0 is missing\n"
        "  [ ] nccl  not built: no nvcc was found"
    ]
    assert len(written) == 3 and written[1].startswith("\ntorch:\n  [x] compiled for ")
    assert written[2] == '  [x] torch.distributed: init_process_group("mydist")'


def test_the_library_is_told_where_packages_have_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "site" / "nvidia" / "nccl" / "lib"
    folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "none"), str(tmp_path / "site")])
    assert nccl_folders() == [str(folder)]
    library = build_library(
        tmp_path,
        "#include <stdio.h>\n"
        "const char* mydist_build_report(const char* folders) {\n"
        "  static char text[4096];\n"
        '  sprintf(text, "{\\"version\\": \\"%s\\", \\"backends\\": []}", folders);\n'
        "  return text;\n"
        "}\n",
    )
    assert read_build_report(library).startswith(f"mydist {folder}\n")


def test_without_library(tmp_path: Path) -> None:
    written: list[str] = []
    assert check_build(written.append, tmp_path / "none.so") == 1
    assert "none.so does not exist; install mydist with pip install ." in written[0]


def test_library_of_another_version(tmp_path: Path) -> None:
    written: list[str] = []
    assert check_build(written.append, build_library(tmp_path, "int other;")) == 1
    assert "has no build report; it belongs to another version" in written[0]


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"version": 1}', b'{"backends": [1]}'])
def test_malformed_report(raw: bytes) -> None:
    with pytest.raises(ValueError, match="the build report of the library is malformed"):
        format_build_report(raw)


def test_doctor_imports_neither_torch_nor_core(mydistrun: Mydistrun) -> None:
    _, out, err = mydistrun.run("--doctor")
    words = [line.split()[0] for line in out.decode().splitlines() if line]
    assert words[:6] == ["python", "torch", "machine", "ssh", "mpirun", "/dev/shm"]
    assert err == ""


@pytest.mark.parametrize(
    ("built", "found", "text"),
    [
        ("2.13.0", "2.13.1+cpu", "[x] compiled for 2.13.0, found 2.13.1+cpu"),
        ("2.13.0", "", "[ ] compiled for 2.13.0, found none"),
        ("", "2.13.0", "[ ] compiled for none (run make build), found 2.13.0"),
        ("2.12.1", "2.13.0", "[ ] mydist was compiled for torch 2.12.1, and this Python has"),
    ],
)
def test_the_versions_of_torch_are_shown(built: str, found: str, text: str) -> None:
    assert text in format_torch(built, found)


@pytest.mark.parametrize(
    ("file", "built", "text"),
    [
        (
            f"_c10d{EXTENSION_SUFFIXES[0]}",
            "2.13.0",
            '[x] torch.distributed: init_process_group("my',
        ),
        (
            "_c10d.cpython-32-x86_64-linux-gnu.so",
            "2.13.0",
            "[ ] torch.distributed: mydist._c10d was",
        ),
        (
            f"_c10d{EXTENSION_SUFFIXES[0]}",
            "2.12.1",
            "[ ] torch.distributed: mydist was compiled for",
        ),
    ],
)
def test_the_backend_of_torch_is_shown(tmp_path: Path, file: str, built: str, text: str) -> None:
    (tmp_path / file).touch()
    assert text in format_torch_backend(tmp_path, built, "2.13.0")
