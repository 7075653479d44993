"""Accelerate, Lightning and transformers' Trainer train over the backend "mydist" as over Gloo.

scripts/setup.sh integrations installs them, in an environment of their own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import mydist
from multiproc.job import WORKERS, run

PYTHON = Path(__file__).resolve().parents[2] / "build/integrations_python/bin/python"

pytestmark = [
    pytest.mark.deep,
    pytest.mark.skipif(not PYTHON.exists(), reason="scripts/setup.sh integrations has not run"),
]


def train(launcher: list[str], program: str, backend: str, folder: Path) -> list[dict[str, Any]]:
    """What each of two ranks has left."""
    folder.mkdir()
    assert mydist.__file__
    path = [str(Path(mydist.__file__).parents[1]), str(WORKERS.parents[1])]
    environment = {"PYTHONPATH": os.pathsep.join(path), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", *launcher, str(PYTHON), str(WORKERS / program)]
    run([*command, backend, str(folder)], timeout=300, env=environment).expect_success()
    return [torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in range(2)]


@pytest.mark.parametrize(
    ("program", "score"),
    [("with_accelerate.py", 0.85), ("with_lightning.py", 0.85), ("with_trainer.py", 0.3)],
)
def test_a_library_trains_as_over_gloo(program: str, score: float, tmp_path: Path) -> None:
    mydistrun = ["mydist.launcher", "-np", "2"]
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    ours = train(mydistrun, program, "mydist", tmp_path / "mydist")
    started_otherwise = train(torchrun, program, "mydist", tmp_path / "torchrun")
    theirs = train(torchrun, program, "gloo", tmp_path / "gloo")
    for rank in range(2):
        assert ours[rank]["backend"] == "mydist" and theirs[rank]["backend"] == "gloo"
        assert ours[rank]["score"] > score
        for name, weight in ours[0]["weights"].items():
            assert torch.equal(weight, ours[rank]["weights"][name])
            assert torch.equal(weight, started_otherwise[rank]["weights"][name])
            torch.testing.assert_close(weight, theirs[rank]["weights"][name], rtol=1e-3, atol=1e-4)
