"""One rank is late: those who wait for it leave the cores to others, however many there are."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

import torch

import mydist as md
from multiproc.registry import check

LATE_SECONDS = 1.5
# Of a core, by all threads of a rank. Looking all the time takes as much as there is.
MOST_BUSY = 0.2


def be_late() -> None:
    """Waits for a pipe that nobody writes into."""
    reader, writer = os.pipe()
    select.select([reader], [], [], LATE_SECONDS)
    os.close(reader)
    os.close(writer)


def expect_idle_wait(collective: Callable[[], object]) -> None:
    """The last rank comes late to the collective. Nothing else is exchanged before."""
    started, used = time.monotonic(), time.process_time()
    if md.rank() == md.size() - 1:
        be_late()
    collective()
    used, waited = time.process_time() - used, time.monotonic() - started
    everyone = md.allgather_object((used, waited))
    assert all(seconds > 0.9 * LATE_SECONDS for _, seconds in everyone), everyone
    assert all(cpu < MOST_BUSY * seconds for cpu, seconds in everyone), everyone


@check(min_size=2)
def a_late_rank_keeps_nobody_busy() -> None:
    md.barrier()
    expect_idle_wait(lambda: md.allreduce(torch.ones(1000), name="late"))


@check(min_size=2)
def nor_does_it_when_nobody_negotiates() -> None:
    def step() -> None:
        md.allreduce(torch.ones(1000), name="step")

    for _ in range(300):
        step()
    before = md.stats()
    step()  # Nobody can be in the next one before all have looked.
    expect_idle_wait(step)
    after = md.stats()
    assert before["frozen_steps"] > 0, before
    # The exchange of what was measured ends the freeze; being late did not.
    assert after["frozen_steps"] - before["frozen_steps"] >= 2, (before, after)
