"""Checkpoints between jobs: another number of ranks, SIGTERM to one rank or to the launcher."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from deep import deep

from multiproc.job import WORKERS, Outcome, job_environment, launch, launcher_command

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

CHECKPOINTED = str(WORKERS / "checkpointed.py")
FORGETFUL = """
import sys, torch, mydist as md
md.init()
model = torch.nn.Linear(1, 1)
md.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = md.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
for step in range(6):
    model(torch.ones(1, 1)).sum().backward()
    optimizer.step()
    if step == 2 and md.rank() == 1:
        model.weight.data += 1
print("DONE")
"""


def draws(outcome: Outcome) -> dict[int, tuple[float, float]]:
    """By rank, the first number of its seed and the one drawn after the resume."""
    found = re.findall(r"DRAW (\d+) (\S+) (\S+)", outcome.output)
    return {int(rank): (float(own), float(drawn)) for rank, own, drawn in found}


@pytest.mark.parametrize("backend", ["gloo", deep("mpi")])
def test_another_number_of_ranks_resumes(tmp_path: Path, backend: str) -> None:
    first = launch(2, backend, CHECKPOINTED, str(tmp_path), "4").expect_success()
    assert first.output.count("START 0") == 2
    assert all(own == drawn for own, drawn in draws(first).values())

    more = launch(3, backend, CHECKPOINTED, str(tmp_path), "0").expect_success()
    assert more.output.count("START 4") == 3
    # Ranks 0 and 1 go on with their restored generators; rank 2 was not there and keeps its own.
    changed = {rank: own != drawn for rank, (own, drawn) in draws(more).items()}
    assert changed == {0: True, 1: True, 2: False}

    fewer = launch(1, backend, CHECKPOINTED, str(tmp_path), "1").expect_success()
    assert fewer.output.count("START 4") == 1
    assert (tmp_path / "step-000000005.pt").is_file()


@pytest.mark.parametrize("backend", ["gloo", deep("mpi")])
@pytest.mark.parametrize("target", ["one rank", deep("mydistrun")])
def test_sigterm_saves_and_all_ranks_stop_at_one_step(
    tmp_path: Path, backend: str, target: str
) -> None:
    command = launcher_command(2, backend, CHECKPOINTED, str(tmp_path), "0", "forever")
    job = subprocess.Popen(
        command, env=job_environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert job.stdout is not None
    output = ""
    try:
        while output.count("READY ") < 2:
            line = job.stdout.readline()
            assert line, f"the job ended early:\n{output}"
            output += line
        rank_pid = int(re.findall(r"READY (\d+)", output)[1])
        os.kill(rank_pid if target == "one rank" else job.pid, signal.SIGTERM)
        output += job.communicate(timeout=30)[0]
    finally:
        if job.poll() is None:
            job.kill()
            job.wait()
    stopped = re.findall(r"STOPPED (\d+)", output)
    assert len(stopped) == 2 and len(set(stopped)) == 1, output
    assert [p.name for p in tmp_path.iterdir()] == [f"step-{int(stopped[0]):09d}.pt"], output
    assert job.returncode == (0 if target == "one rank" else 143), output


@pytest.mark.deep
def test_the_flag_repeats_the_check() -> None:
    outcome = launch(2, "gloo", "-c", FORGETFUL, flags=["--check-consistency", "2"])
    assert outcome.code == 1, outcome.output
    text = "check before step 5 of the optimizer: the values of parameter 'param_group.0.0' differ"
    assert text in outcome.output and "DONE" not in outcome.output, outcome.output
    quiet = launch(2, "gloo", "-c", FORGETFUL, flags=["--check-consistency=-1"])
    assert quiet.expect_success().output.count("DONE") == 2


def test_ranks_with_another_interval_are_refused_at_init() -> None:
    code = (
        "import os, mydist\n"
        "if os.environ['RANK'] == '1': os.environ['MYDIST_CHECK_CONSISTENCY'] = '7'\n"
        "mydist.init()"
    )
    outcome = launch(2, "gloo", "-c", code)
    assert outcome.code == 1, outcome.output
    assert "MismatchError" in outcome.output, outcome.output
    assert "MYDIST_CHECK_CONSISTENCY" in outcome.output, outcome.output
