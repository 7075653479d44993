"""What the log says once of what was chosen, at which level, and by how many ranks."""

from __future__ import annotations

import re

import pytest
from deep import deep

from multiproc.job import launch

# Slow: a run of the whole suite has half of these, the next one the other half.
pytestmark = pytest.mark.turns(2)

JOB = """
import torch
import mydist as md

md.init()
torch.manual_seed(1)
model = torch.nn.Linear(8, 8)
optimizer = md.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1), named_parameters=model.named_parameters()
)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.ones(1, 8)).sum().backward()
    optimizer.step()
md.shutdown()
"""
NP = 2
KERNELS = "reduces with the [a-z0-9]+ kernels"
BACKEND = "the job of 2 ranks uses the local backend: all ranks are on one host and share memory; "
MEMORY = "negotiate and reduce through shared memory; fusion buffers and gradients are in it, "
BUCKETS = r"reduces 2 gradients of 288 bytes in \d+ buckets of up to \d+ bytes: sqrt"
ATTACH = {
    "on": r"private tensors are read directly \(process_vm_readv\)",
    "off": r"private tensors are copied through it \(.*MYDIST_CROSS_MEMORY_ATTACH\)",
}
LINE = re.compile(r"mydist ([A-Z]+) .*")


def log_of(level: str, attach: str = "auto") -> list[str]:
    """All lines that mydist has written of a job of two ranks."""
    env = {"MYDIST_SHARED_MEMORY": "1", "MYDIST_LOG_LEVEL": level, "MYDIST_CONTROLLER": "auto"}
    flags = ("--cross-memory-attach", attach)
    output = launch(NP, "local", "-c", JOB, env=env, flags=flags).expect_success().output
    return [found[0] for found in LINE.finditer(output)]


@pytest.mark.parametrize("attach", ["on", deep("off")])
def test_what_was_chosen_and_why_is_said_once_at_level_info(attach: str) -> None:
    lines = log_of("info", attach)
    counts = {
        text: sum(re.search(text, line) is not None for line in lines)
        for text in (KERNELS, BACKEND, MEMORY, ATTACH[attach], BUCKETS)
    }
    assert counts.pop(KERNELS) == NP, lines
    assert set(counts.values()) == {1}, (counts, lines)
    assert all(line.startswith("mydist INFO ") for line in lines), lines


def test_a_job_that_lacks_nothing_is_silent_by_default() -> None:
    assert log_of("warning") == []
    assert log_of("") == []
