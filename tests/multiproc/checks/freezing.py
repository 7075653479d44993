"""Steps that negotiation has nothing to do with.

Counters are read before the last step: no rank can go on to something else before all have made it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

import mydist
from multiproc.checks.models import expect_equal_parameters, loss_of, tiny_model
from multiproc.cores import has_a_core_each
from multiproc.reference import expect_near
from multiproc.registry import NotHereError, check

# More than enough for ten equal steps, also when earlier checks have made the job wait longer.
SETTLING_STEPS = 300
STEPS = 50
TIMED_STEPS = 1000
MOST_STEPS = 40 * TIMED_STEPS
ENOUGH = 400  # Steps that all ranks begin at once; nearly all do when the machine is free.
AT_ONCE = 25e-6  # Seconds; a rank that waits looks for twice as long before it sleeps.


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


def unnamed_step() -> Callable[[], None]:
    """Makes steps of four collectives that all have another number in each, two of a kind."""
    rank, size, number = mydist.rank(), mydist.size(), 0
    ranks = size * (size + 1) // 2

    def step() -> None:
        nonlocal number
        number += 1
        loss = mydist.allreduce(torch.tensor(float(number * (rank + 1))), op=mydist.Sum)
        assert loss.item() == number * ranks, (number, loss)
        pair = [torch.full((3,), float(rank + number)), torch.full((2,), rank + 1.0)]
        first, second = mydist.grouped_allreduce(pair, op=mydist.Sum)
        assert first.tolist() == [float(ranks - size + size * number)] * 3, (number, first)
        assert second.tolist() == [float(ranks)] * 2, (number, second)
        mydist.barrier()
        count = mydist.allreduce(torch.tensor(rank + number), op=mydist.Max)
        assert count.item() == size - 1 + number, (number, count)

    return step


@check(min_size=2)
def a_step_without_names_takes_no_control_messages() -> None:
    expect_no_messages(unnamed_step(), buckets=4)


@check(min_size=2, cases=[(True, True), (False, False)])
def a_training_step_takes_no_control_messages(set_to_none: bool, as_views: bool) -> None:
    # With other data in each step and on each rank, next to a plain optimizer that knows them all.
    model, reference = tiny_model(), tiny_model()
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    optimizer = mydist.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        gradient_as_buffer_view=as_views,
    )
    number = 0

    def step() -> None:
        nonlocal number
        number += 1
        optimizer.zero_grad(set_to_none=set_to_none)
        loss_of(model, mydist.rank(), number).backward()
        optimizer.step()
        plain.zero_grad()
        losses = [loss_of(reference, rank, number) for rank in range(mydist.size())]
        torch.stack(losses).mean().backward()
        plain.step()
        for (name, mine), wanted in zip(
            model.named_parameters(), reference.parameters(), strict=True
        ):
            expect_near(mine, wanted, 1e-9, f"{name} after step {number}")

    expect_no_messages(step)
    expect_equal_parameters(model)


@dataclass(frozen=True)
class TimedStep:
    """A step of one rank, and the time since the one before."""

    begin: float  # All ranks of a host read the same clock.
    seconds: float
    hand_overs: int
    wakeups: int


def timed_steps(step: Callable[[], None], count: int) -> list[TimedStep]:
    steps, before = [], mydist.stats()
    for _ in range(count):
        begin = time.monotonic()
        step()
        after = mydist.stats()
        hand_overs, wakeups = (after[key] - before[key] for key in ("hand_overs", "wakeups"))
        steps.append(TimedStep(begin, time.monotonic() - begin, hand_overs, wakeups))
        before = after
    return steps


def is_punctual(steps: Sequence[TimedStep]) -> bool:
    """Of all ranks, the same step: whether no other rank made one wait for long enough to sleep."""
    begins = [step.begin for step in steps]
    return max(begins) - min(begins) < AT_ONCE


@contextmanager
def on_a_core_of_its_own() -> Iterator[None]:
    """Keeps this thread where no other rank's is: a busy machine lets two share one, by turns."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {sorted(cores)[mydist.local_rank()]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


@check(min_size=2)
def a_synchronous_step_wakes_nobody() -> None:
    """Whoever waits drives the engine, asleep as well, and leaves it to the engine's thread only if
    that is at work just then. It looks once a millisecond whether the series is over
    (WaitPolicy::linger), or twice in a call that takes longer.
    """
    if mydist.local_size() < mydist.size():
        raise NotHereError("news of other hosts comes through a thread of its own")
    if not has_a_core_each():
        raise NotHereError("no core for each rank for certain: ranks that wait give way")
    step, mine, punctual = synchronous_step(), [], []
    with on_a_core_of_its_own():
        for _ in range(SETTLING_STEPS):
            step()
        while len(punctual) < ENOUGH and len(mine) < MOST_STEPS:  # Of all ranks alike.
            everyone = mydist.allgather_object(timed_steps(step, TIMED_STEPS))
            mine += everyone[mydist.rank()]
            punctual += [
                same[mydist.rank()] for same in zip(*everyone, strict=True) if is_punctual(same)
            ]
    left = sum(timed.hand_overs > 0 for timed in mine)
    woken = sum(timed.wakeups > 0 for timed in punctual)
    hand_overs, wakeups = sum(t.hand_overs for t in mine), sum(t.wakeups for t in mine)
    milliseconds = 1000 * sum(t.seconds for t in mine)
    counts = f"{len(mine)=} {len(punctual)=} {left=} {woken=}"
    seen = f"{counts} {hand_overs=} {wakeups=} {milliseconds=:.0f}"
    assert len(punctual) >= ENOUGH, seen
    # The machine may keep the engine's thread from its core while it is at work.
    assert left < 0.05 * len(mine), seen
    # A machine that is at work elsewhere makes steps of milliseconds, with looks in each.
    assert woken < sum(min(1.0, 0.4 + 2000 * timed.seconds) for timed in punctual), seen
    assert wakeups < 2 * milliseconds + 4 * hand_overs + 20, seen
