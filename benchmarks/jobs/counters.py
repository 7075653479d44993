"""A8, A9 and A11: how long one small tensor takes, and what mydist itself counts."""

from __future__ import annotations

import os
import time
from functools import partial

import torch

import mydist as md
from mydist.bench.contest import Stopwatch, pretend_hosts, share, take_core
from mydist.bench.models import Trainee, make_workload
from mydist.bench.problem import WrongResult

from .job import Figures, JobArguments, most_of_any_rank, times

_WARM_UPS = 100
_WARM_UP_STEPS = 30
_IDLE_SECONDS = 1.0
_HOSTS = 2
_SENT = "inter_host_bytes_sent"


def take_a_core(_: JobArguments) -> None:
    """Pins the rank as a whole: the scheduler leaves a thread that it wakes where it was last,
    which may as well be the core of another rank."""
    take_core(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def _wait_for(data: torch.Tensor) -> torch.Tensor:
    return md.allreduce_(data, op=md.Sum, name="latency.wait")


def _poll_for(data: torch.Tensor) -> torch.Tensor:
    """The engine's thread does the work; the caller looks, and lets others run in between."""
    handle = md.allreduce_async_(data, op=md.Sum, name="latency.poll")
    while not md.poll(handle):
        os.sched_yield()
    result = md.synchronize(handle)
    assert isinstance(result, torch.Tensor)
    return result


def measure_latency(arguments: JobArguments) -> Figures:
    """A8: from submit to done, one tensor of 4 bytes that every rank has seen before.

    Not by turns: each way is a program that does one thing, whose schedule comes to rest.
    """
    data = torch.zeros(1)
    figures: Figures = {}
    for name, call in (("caller", _wait_for), ("thread", _poll_for)):
        watch = Stopwatch(_WARM_UPS)
        for index in range(_WARM_UPS + arguments.pick(1500, 3)):
            data.fill_(index)
            watch.time(partial(call, data))
            if data.item() != index * md.size():
                raise WrongResult(f"{name}: got {data.item()}, expected {index * md.size()}")
        figures |= times(name, share(watch.measured))
    return figures


def measure_steady_state(arguments: JobArguments) -> Figures:
    """A9: control messages of equal training steps, and wake-ups while no rank does anything.

    The wake-ups of a step have no target: gradients are submitted by a thread that does not wait,
    so the engine's is woken, more or less often depending on what else runs.
    """
    steps = arguments.pick(100, 5)
    trainee = Trainee(make_workload("conv", 2, md.rank()), distributed=True)
    for _ in range(_WARM_UP_STEPS):
        trainee.step()
    before = md.stats()
    for _ in range(steps):
        trainee.step()
    # Before the last step: until it is made no rank can go on to something else.
    busy = md.stats()
    trainee.step()
    # What a rank still does when the barrier ends takes microseconds.
    md.barrier()
    time.sleep(0.05)
    start = md.stats()
    time.sleep(_IDLE_SECONDS)
    end = md.stats()
    sent = "control_messages_sent"
    counts = {
        "messages_per_step": (busy[sent] - before[sent]) / steps,
        "wakeups_per_step": (busy["wakeups"] - before["wakeups"]) / steps,
        "idle_wakeups": (end["wakeups"] - start["wakeups"]) / _IDLE_SECONDS,
    }
    return most_of_any_rank(counts)


def pretend_two_hosts(_: JobArguments) -> None:
    """The ranks in two blocks."""
    pretend_hosts(_HOSTS)


def measure_hierarchy_bytes(arguments: JobArguments) -> Figures:
    """A11: what the host that sends most has sent in an allreduce, next to 2n(N-1)/N."""
    data = torch.ones(arguments.pick(1 << 20, 1 << 10))
    md.allreduce_(data, op=md.Sum, name="bytes")
    before = md.stats()[_SENT]
    md.allreduce_(data.fill_(1), op=md.Sum, name="bytes")
    sent = md.stats()[_SENT] - before
    if not bool(data.eq(md.size()).all()):
        raise WrongResult(f"rank {md.rank()} got a wrong sum")
    by_rank = md.allgather(torch.tensor([sent], dtype=torch.int64), name="sent")
    worst = int(by_rank.view(_HOSTS, -1).sum(1).max())
    formula = 2 * data.nbytes * (_HOSTS - 1) / _HOSTS
    return {"sent_bytes": worst, "formula_bytes": formula, "excess_bytes": worst - formula}
