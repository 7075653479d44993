"""The Python API on a real GPU. Without one each test says why it is skipped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import mydist as md


def why_not() -> str:
    """Why tensors on a GPU cannot be tested here; empty when they can."""
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    if not md.cuda_built():
        return "mydist was built without CUDA"
    return ""


@pytest.fixture
def gpu() -> torch.device:
    """The first GPU."""
    if reason := why_not():
        pytest.skip(reason)
    return torch.device("cuda", 0)


@pytest.fixture
def job(gpu: torch.device) -> Iterator[torch.device]:
    """A job of one rank, and its GPU."""
    md.init()
    yield gpu
    md.shutdown()
