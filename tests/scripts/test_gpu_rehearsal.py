"""The tests that need a GPU, rehearsed without one: that they run, and that they are skipped."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mydist.bench.devices import why_no_gpu

ROOT = Path(__file__).resolve().parents[2]


def run_gpu_tests(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/gpu"]
    run = subprocess.run(
        [*command, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def count(word: str, output: str) -> int:
    found = re.search(rf"(\d+) {word}", output.splitlines()[-1])
    return int(found[1]) if found else 0


@pytest.mark.deep
def test_in_host_memory_they_are_right() -> None:
    output = run_gpu_tests("--gpu", "cpu")
    assert count("passed", output) > 110


def test_without_a_gpu_each_says_why_it_is_skipped() -> None:
    reason = why_no_gpu()
    if not reason:
        pytest.skip("there is a GPU")
    output = run_gpu_tests("-rs")
    assert count("passed", output) == 0
    assert reason in output
