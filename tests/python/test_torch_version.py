"""A binding that was compiled for another torch is refused before it is loaded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from mydist._torch_version import built_for, present, refusal

OF_ANOTHER = """
import sys
import mydist._torch_version as versions
versions.built_for = lambda: "1.5.0"
import mydist.{module}
"""


@pytest.mark.parametrize("module", ["optim.optimizer", "checkpoint"])
def test_a_binding_for_another_torch_is_not_loaded(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OF_ANOTHER.format(module=module)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: mydist was compiled for torch 1.5.0, and this"), last
    assert f"torch {present()}" in last and "make build" in last


def test_this_one_is_compiled_for_this_torch() -> None:
    assert refusal(built_for(), present()) == ""
    assert built_for() == present()


def test_only_the_minor_version_counts() -> None:
    assert refusal("2.13.0", "2.13.4+cu130") == ""
    assert refusal("2.13.0", "3.13.0") != ""
    assert refusal("", "2.13.0") == ""
