"""The Python API on a real GPU. Without one each test says why it is skipped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mydist as md
from mydist.bench.devices import why_no_gpu


@pytest.fixture
def gpu() -> torch.device:
    """The first GPU."""
    if reason := why_no_gpu():
        pytest.skip(reason)
    return torch.device("cuda", 0)


@pytest.fixture
def job(gpu: torch.device) -> Iterator[torch.device]:
    """A job of one rank, and its GPU."""
    md.init()
    yield gpu
    md.shutdown()


@pytest.fixture
def tests_on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the ranks that md.run starts."""
    tests = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [tests, os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
