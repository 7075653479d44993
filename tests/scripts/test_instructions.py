"""scripts/check_instructions.py on small libraries: AVX only where it belongs, nothing fused."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "check_instructions.py"
pytestmark = [
    pytest.mark.skipif(platform.machine() != "x86_64", reason="AVX is x86-64"),
    pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler"),
]

ADD = "void Add(float* a, const float* b) { for (int i = 0; i < 64; ++i) a[i] += b[i]; }\n"
FUSED = "float Fused(float a, float b, float c) { return __builtin_fmaf(a, b, c); }\n"


def check(folder: Path, source: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Compile a source to a library and check it."""
    (folder / "x.cc").write_text(source)
    library = str(folder / "x.so")
    compile_command = ["c++", "-O2", "-shared", "-fPIC", *flags, "-o", library, "x.cc"]
    subprocess.run(compile_command, cwd=folder, timeout=60, check=True)
    command = [sys.executable, str(SCRIPT), library]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_avx_in_its_own_namespace_passes(tmp_path: Path) -> None:
    result = check(tmp_path, f"namespace mydist::simd::avx2 {{ {ADD} }}", "-mavx2")
    assert result.returncode == 0, result.stdout


def test_code_for_every_cpu_passes(tmp_path: Path) -> None:
    assert check(tmp_path, ADD).returncode == 0


def test_a_clone_for_newer_cpus_passes(tmp_path: Path) -> None:
    clones = '__attribute__((target_clones("avx512f", "avx2", "default"))) '
    result = check(tmp_path, clones + ADD, "-O3")
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("namespace", ["mydist::simd::portable", "mydist::simd"])
def test_avx_anywhere_else_fails(namespace: str, tmp_path: Path) -> None:
    result = check(tmp_path, f"namespace {namespace} {{ {ADD} }}", "-mavx2")
    assert result.returncode == 1
    assert f"{namespace}::Add(float*, float const*): v" in result.stdout


def test_fused_operation_fails_even_there(tmp_path: Path) -> None:
    source = f"namespace mydist::simd::avx2 {{ {FUSED} }}"
    result = check(tmp_path, source, "-mavx2", "-mfma")
    assert result.returncode == 1
    assert "rounds once" in result.stdout
