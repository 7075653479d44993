"""G4: an allreduce that goes device → hosts → device, next to each of its stages alone.

Two ranks pretend to be on two hosts and share a GPU, and its link. The stages: a copy into pinned
memory, an allreduce of that memory, a copy back; in each both ranks do so at once. They and the
whole take turns, and the slowest rank counts. What each leaves behind is checked. "percent" is the
time of the slowest stage alone ÷ that of the whole; "chunks_in_flight", counted by mydist, is how
many copies to the host were ordered before the first of them was exchanged. Without Gloo there is
one host ("hosts"), whose shared memory is the stage in the middle, and no "percent".
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping

import torch

import mydist as md
from mydist.bench.contest import Stopwatch, pretend_hosts, share
from mydist.bench.devices import synchronize
from mydist.bench.implementations import Mydist
from mydist.bench.problem import WrongResult

from .job import Figures, JobArguments, times

_WARM_UPS = 3
_BYTES = 64 << 20
STAGES = ("fetch", "network", "deliver")


class Stages:
    """The tensor on the device, and the pinned memory that it is copied to and from."""

    def __init__(self, elements: int, device: torch.device) -> None:
        self._device = device
        self._data = torch.empty(elements, device=device)
        self._host = torch.zeros(elements, pin_memory=device.type == "cuda")
        self.calls: dict[str, Callable[[], torch.Tensor]] = {
            "fetch": lambda: self._copy(self._host, self._data),
            "network": lambda: md.allreduce_(self._host, op=md.Sum, name="staging.host"),
            "deliver": lambda: self._copy(self._data, self._host),
            "staged": self._allreduce,
        }

    def fill(self, iteration: int) -> None:
        """The tensor with rank + iteration, and the memory of the host with one more."""
        self._data.fill_(md.rank() + iteration)
        self._host.fill_(md.rank() + iteration + 1)
        synchronize(self._device)

    def check(self, name: str, iteration: int) -> None:
        """Raises WrongResult unless that call has left behind everywhere what it should have."""
        mine, total = md.rank() + iteration, sum(rank + iteration for rank in range(md.size()))
        result, expected = {
            "fetch": (self._host, mine),
            "network": (self._host, total + md.size()),
            "deliver": (self._data, mine + 1),
            "staged": (self._data, total),
        }[name]
        if not bool(result.eq(expected).all()):
            raise WrongResult(f"rank {md.rank()}: after {name} not all elements are {expected}")

    def _copy(self, target: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
        target.copy_(source, non_blocking=True)
        synchronize(self._device)
        return target

    def _allreduce(self) -> torch.Tensor:
        md.allreduce_(self._data, op=md.Sum, name="staging.device")
        synchronize(self._device)
        return self._data


def judge(figures: Mapping[str, float], hosts: int) -> Figures:
    """From the median times of stages and whole: what part of the slowest stage's rate is left."""
    rates = {f"{name}_gbs": _BYTES / figures[f"{name}_us"] / 1e3 for name in (*STAGES, "staged")}
    if hosts < 2:
        return rates
    slowest = max(figures[f"{stage}_us"] for stage in STAGES)
    return {**rates, "percent": 100 * slowest / figures["staged_us"]}


def prepare(_: JobArguments) -> None:
    """Two levels without the one inside hosts; nothing goes between hosts without Gloo."""
    if md.gloo_built():
        pretend_hosts(2)
    os.environ["MYDIST_HIERARCHICAL_ALLREDUCE"] = "1"


def measure(arguments: JobArguments) -> Figures:
    """Times, rates, percent and chunks."""
    stages = Stages(_BYTES // 4, arguments.device)
    ranks = Mydist()
    watches = {name: Stopwatch(_WARM_UPS) for name in stages.calls}
    for iteration in range(-_WARM_UPS, arguments.pick(30, 1)):
        for name, call in stages.calls.items():
            stages.fill(iteration)
            ranks.barrier()
            watches[name].time(call)
            ranks.await_others()
            stages.check(name, iteration)
    path = md.explain().facts.get("GPU path")
    if arguments.device.type == "cuda" and (path is None or "host memory" not in path.choice):
        raise RuntimeError(f"the allreduce was not staged: {path}")
    figures: Figures = {}
    for name, watch in watches.items():
        figures |= times(name, share(watch.measured))
    hosts = md.cross_size()
    if hosts < 2:
        print("without two hosts: Gloo is not built in", file=sys.stderr, flush=True)
    figures |= {**judge(figures, hosts), "hosts": hosts}
    figures["chunks_in_flight"] = md.stats().get("most_staged_chunks", 0)
    return figures
