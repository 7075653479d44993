"""One process, no launcher: a job of one rank, started and left by fixtures."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

LAUNCHER_VARIABLES = (
    "MYDIST_",
    "OMPI_COMM_WORLD_",
    "PMI_",
    "SLURM_",
    "TORCHELASTIC_",
)
TORCHRUN_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


def plain_environment() -> dict[str, str]:
    """This process's environment without anything a launcher may have left in it."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(LAUNCHER_VARIABLES) and name not in TORCHRUN_VARIABLES
    }


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = plain_environment()
    for name in set(os.environ) - set(kept):
        monkeypatch.delenv(name)


@pytest.fixture
def job(_no_launcher: None) -> Iterator[None]:
    """An initialized job of one rank."""
    import mydist

    mydist.init()
    yield
    mydist.shutdown()


@pytest.fixture
def no_job() -> None:
    """mydist is not initialized."""
    import mydist

    mydist.shutdown()


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes on one thread: for work in small steps."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs a piece of code in a fresh interpreter and gives its output and exit code."""

    def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            env=plain_environment() | variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run
