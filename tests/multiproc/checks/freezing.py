"""Steps that negotiation has nothing to do with.

Counters are read before the last step: no rank can go on to something else before all have made it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import torch

import mydist
from multiproc.checks.models import expect_equal_parameters
from multiproc.registry import check

# More than enough for ten equal steps, also when earlier checks have made the job wait longer.
SETTLING_STEPS = 300
STEPS = 50
SHORT = 10  # Steps, of which a machine that is busy otherwise disturbs few.
WINDOWS = 200


def other_hosts() -> int:
    """To how many hosts this rank sends words: as many as there are, if it speaks for its own."""
    return mydist.cross_size() - 1 if mydist.local_rank() == 0 else 0


def expect_no_messages(step: Callable[[], None], buckets: int | None = None) -> None:
    """Nothing but one word per bucket from host to host; `buckets`: of a step, if that is known."""
    for _ in range(SETTLING_STEPS):
        step()
    before = mydist.stats()
    for _ in range(STEPS):
        step()
    after = mydist.stats()
    step()
    changed = {key: after[key] - before[key] for key in after}
    assert changed["frozen_steps"] == STEPS, changed
    assert changed["thaws"] == 0, changed
    sent, received = changed["host_votes_sent"], changed["host_votes_received"]
    # Inside a host there are no messages at all.
    assert changed["control_messages_sent"] == sent, changed
    assert changed["control_messages_received"] == received, changed
    least = STEPS * (buckets or 1) * other_hosts()
    if buckets is None:  # As many in each step; a bucket is one collective or more.
        assert sent >= least and sent % STEPS == 0, changed
        assert sent <= changed["batches"] * other_hosts(), changed
    else:
        assert sent == least, changed
    # The first word of the next step may have come already, and had before.
    assert abs(received - sent) <= other_hosts(), changed


def synchronous_step() -> Callable[[], None]:
    """What makes steps of two collectives with other values in each."""
    size, number = mydist.size(), 0

    def step() -> None:
        nonlocal number
        number += 1
        mine = torch.arange(5.0) * (mydist.rank() + 1) + number
        first = mydist.allreduce(mine, name="first", op=mydist.Sum)
        expected = torch.arange(5.0) * (size * (size + 1) // 2) + size * number
        assert torch.equal(first, expected), (number, first, expected)
        rows = torch.full((2, 3), float(size * number + mydist.rank()))
        second = mydist.allgather(rows, name="second")
        everyone = [float(size * number + r) for r in range(size) for _ in range(2)]
        assert second[:, 0].tolist() == everyone, (number, second)

    return step


@check(min_size=2)
def a_synchronous_step_takes_no_control_messages() -> None:
    expect_no_messages(synchronous_step(), buckets=2)


@check(min_size=2)
def a_training_step_takes_no_control_messages() -> None:
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = mydist.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1e-3), named_parameters=model.named_parameters()
    )
    data = torch.full((4, 8), float(mydist.rank() + 1))

    def step() -> None:
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()

    expect_no_messages(step)
    expect_equal_parameters(model)


def has_a_core_each() -> bool:
    """Whether the ranks of this host may each use a core of their own all the time."""
    if mydist.local_size() > len(os.sched_getaffinity(0)):
        return False
    quotas = (Path("/sys/fs/cgroup/cpu.max"), Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us"))
    limits = [path.read_text("ascii").split()[0] for path in quotas if path.exists()]
    return all(limit in ("max", "-1") for limit in limits)


@check(min_size=2)
def a_synchronous_step_wakes_nobody() -> None:
    """Whoever waits drives the engine. Its thread only looks once a millisecond whether the series
    is over (WaitPolicy::linger). A rank that gets no core keeps the others waiting for longer than
    they look themselves, so some of the windows may see a machine that is busy otherwise.
    """
    if mydist.local_size() < mydist.size() or not has_a_core_each():
        return  # Then waiting ranks give way, or news comes through a thread of its own.
    step = synchronous_step()
    for _ in range(SETTLING_STEPS):
        step()
    windows = []
    for _ in range(WINDOWS):
        started, before = time.monotonic(), mydist.stats()
        for _ in range(SHORT):
            step()
        after, milliseconds = mydist.stats(), 1000 * (time.monotonic() - started)
        hand_overs, wakeups = (after[key] - before[key] for key in ("hand_overs", "wakeups"))
        windows.append((hand_overs, wakeups, round(milliseconds, 1)))
    quiet = [w for w in windows if w[0] == 0 and w[1] <= w[2] + 1 and w[1] < SHORT]
    assert quiet, windows
