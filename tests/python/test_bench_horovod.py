"""Horovod as a peer, with a module of one rank in its place: CI has no Horovod."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

STAND_IN = """
import torch
Sum = "sum"
init = shutdown = barrier = lambda: None
rank, size = (lambda: 0), (lambda: 1)
allreduce_ = lambda tensor, op, name: tensor
allgather = lambda tensor, name: tensor.clone()
broadcast_ = lambda tensor, root, name: tensor
alltoall = lambda tensor, name: tensor.clone()
reducescatter = lambda tensor, op, name: tensor + {error}
DistributedOptimizer = lambda optimizer, named_parameters: optimizer
"""


def run_peer(folder: Path, *words: str, error: int = 0) -> subprocess.CompletedProcess[str]:
    (folder / "horovod").mkdir(exist_ok=True)
    (folder / "horovod" / "torch.py").write_text(STAND_IN.format(error=error))
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, "-m", "mydist.bench.horovod_peer", *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.parametrize("op", ["allreduce", "reducescatter"])
def test_a_collective_is_reported_as_the_other_peers_do(op: str, tmp_path: Path) -> None:
    run = run_peer(tmp_path, op, "float32", "4:3:1", "100:2:1")
    assert run.returncode == 0, run.stderr
    lines = [line.split() for line in run.stdout.splitlines()]
    assert [line[:3] for line in lines] == [
        ["result", "horovod", "4"],
        ["result", "horovod", "100"],
    ]
    # CPU seconds and context switches of a call, then the microseconds of each sample.
    assert [len(line) - 3 for line in lines] == [2 + 3, 2 + 2]
    assert all(float(number) >= 0 for line in lines for number in line[3:])


def test_a_wrong_result_is_an_error(tmp_path: Path) -> None:
    run = run_peer(tmp_path, "reducescatter", "float32", "4:3:1", error=1)
    assert run.returncode != 0
    assert "WrongResult: horovod: reducescatter of 16 bytes gave a wrong result" in run.stderr


def test_a_step_tells_its_times_and_its_gradients(tmp_path: Path) -> None:
    run = run_peer(tmp_path, "step", "conv", "2", "3")
    assert run.returncode == 0, run.stderr
    result, gradients = (line.split() for line in run.stdout.splitlines())
    assert result[:2] == ["result", "horovod"] and len(result) == 3 + 2 + 3
    assert gradients[0] == "gradients" and len(gradients) > 2
    assert any(float(value) for value in gradients[1:])
