"""One rank is late: those who wait for it leave the cores to others, however many there are."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable

import torch

import mydist as md
from multiproc.cores import has_a_core_each
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


def be_busy() -> None:
    """Computes on all training threads."""
    matrix = torch.ones(512, 512)
    end = time.monotonic() + LATE_SECONDS
    while time.monotonic() < end:
        torch.mm(matrix, matrix)


def expect_idle_wait(collective: Callable[[], object], delay: Callable[[], None] = be_late) -> None:
    """The last rank comes late to the collective. Nothing else is exchanged before."""
    started, used = time.monotonic(), time.process_time()
    if md.rank() == md.size() - 1:
        delay()
    collective()
    used, waited = time.process_time() - used, time.monotonic() - started
    everyone = md.allgather_object((used, waited))
    # Half of it, as a rank may leave what came before later than the last one does.
    assert all(seconds > 0.5 * LATE_SECONDS for _, seconds in everyone), everyone
    idle = everyone if delay is be_late else everyone[:-1]
    assert all(cpu < MOST_BUSY * seconds for cpu, seconds in idle), everyone


@check(min_size=2)
def who_waits_looks_for_long_only_with_a_core_each() -> None:
    choice = md.explain().facts["waiting"].choice
    if has_a_core_each():
        assert choice == "spins briefly, then sleeps"
    elif md.local_size() > len(os.sched_getaffinity(0)):
        assert choice == "yields the core at once"


@check(min_size=2)
def a_late_rank_keeps_nobody_busy() -> None:
    md.barrier()
    before = md.stats()["wait_us"]
    waits: list[int] = []

    def collective() -> None:
        md.allreduce(torch.ones(1000), name="late")
        waits.append(md.stats()["wait_us"] - before)

    expect_idle_wait(collective)
    *others, last = md.allgather_object(waits[0])
    assert min(others) > 0.5e6 * LATE_SECONDS and last < 0.3e6 * LATE_SECONDS, (others, last)


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


@check(min_size=2)
def training_threads_that_outnumber_the_cores_have_them() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(2 * len(os.sched_getaffinity(0)))
    try:
        torch.mm(torch.ones(512, 512), torch.ones(512, 512))  # Starts them.
        md.barrier()
        expect_idle_wait(lambda: md.allreduce(torch.ones(1000), name="computing"), be_busy)
    finally:
        torch.set_num_threads(threads)
