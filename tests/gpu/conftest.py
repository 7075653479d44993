"""The Python API on a real GPU. Without one each test says why it is skipped.

With `--gpu cpu` they are rehearsed in host memory, as far as they can: which tells nothing about
GPUs, but that the tests themselves run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import mydist as md
from mydist.bench.devices import why_no_gpu


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds --gpu and --layout."""
    parser.addoption("--gpu", default="cuda:0", help="device of the tests of GPUs: cuda:0, or cpu")
    parser.addoption("--layout", help="of the ranks that share a GPU: this one only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keeps what was asked for: a name with spaces is no expression for -k."""
    layout = config.getoption("--layout")
    if layout is None:
        return
    kept = [
        item
        for item in items
        if isinstance(item, pytest.Function)
        and hasattr(item, "callspec")
        and item.callspec.params.get("name") == layout
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


@pytest.fixture
def gpu(request: pytest.FixtureRequest) -> torch.device:
    """The first GPU, or what stands in for it."""
    device = torch.device(request.config.getoption("--gpu"))
    if device.type == "cuda" and (reason := why_no_gpu()):
        pytest.skip(reason)
    return device


@pytest.fixture
def cuda(gpu: torch.device) -> None:
    """For tests of what only CUDA has."""
    if gpu.type != "cuda":
        pytest.skip("not in host memory")


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
