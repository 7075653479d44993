"""G6: what the engine costs for one fused bucket of gradients on a GPU.

A bucket is 32 tensors that do not lie one after the other, averaged in place: one call of the
binding, whose caller drives the engine. Its host time is that of the call, which waits for no GPU;
with two ranks it has in it the wait for the other one, and the schedule is frozen. Once more under
torch's profiler it is counted what was put on the GPU (kernels, copies, fills), and how often a
thread waited for it by a call of the driver; the barriers are left out then, so the schedule thaws,
which changes neither. A call made while the GPU is busy for long shows waits of any other kind. The
rank with the most counts. Two ranks share the GPU, and reduce over NCCL, or there are no figures.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

import mydist as md
from mydist import _C
from mydist.bench.contest import Stopwatch, share
from mydist.bench.devices import synchronize
from mydist.bench.implementations import Mydist
from mydist.bench.problem import WrongResult

from .job import Figures, JobArguments, do_without_sharing, most_of_any_rank, times
from .profiled import profile_calls

_TENSORS, _ELEMENTS = 32, 32 << 10  # 4 MiB.
_LEAST_WARM_UPS, _MOST_WARM_UPS = 5, 300
_LONG_CYCLES = 2_000_000_000  # Of the GPU: about a second.


class Bucket:
    """The tensors, each with memory that ends before the next one's begins."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tensors = [torch.empty(_ELEMENTS + 64, device=device)[64:] for _ in range(_TENSORS)]
        self._names = [f"bucket.{index}" for index in range(_TENSORS)]

    def fill(self, value: float) -> None:
        """All of them, until the device is done."""
        for tensor in self._tensors:
            tensor.fill_(value)
        synchronize(self._device)

    def run(self) -> torch.Tensor:
        """Averages all of them; returns while the device works."""
        average = int(md.Average)
        _C.allreduce(self._tensors, self._tensors, self._names, "bucket", average, 1.0, 1.0, 0)
        return self._tensors[0]

    def check(self, expected: float) -> None:
        """Raises WrongResult unless all have that value everywhere."""
        if not all(bool(tensor.eq(expected).all()) for tensor in self._tensors):
            raise WrongResult(f"rank {md.rank()}: not all elements of the bucket are {expected}")


def has_waited(bucket: Bucket, ranks: Mydist, device: torch.device) -> bool:
    """Whether a call returns only when the GPU is through with what it had before. Collective."""
    if device.type != "cuda":
        return False
    cuda: Any = torch.cuda  # Which of its functions have types depends on torch's version.
    before = cuda.Event()
    cuda._sleep(1)  # What is launched for the first time may wait until it is loaded.
    synchronize(device)
    cuda._sleep(_LONG_CYCLES)
    before.record()
    ranks.barrier()  # Every rank's GPU is busy; on the host nobody is late.
    bucket.run()
    waited = bool(before.query())
    synchronize(device)
    return waited


def measure(arguments: JobArguments) -> Figures:
    """Host time, launches, waits and batches of a bucket; nothing without NCCL for two on a GPU."""
    device, ranks = arguments.device, Mydist()
    bucket = Bucket(device)
    average = (md.size() + 1) / 2

    def iterate(watch: Stopwatch) -> None:
        bucket.fill(md.rank() + 1)
        ranks.barrier()
        watch.time(bucket.run)
        ranks.await_others()

    warm_ups = 0
    while warm_ups < _LEAST_WARM_UPS or (warm_ups < _MOST_WARM_UPS and not ranks.is_settled()):
        iterate(Stopwatch())
        warm_ups += 1
    watch = Stopwatch()
    for _ in range(arguments.pick(300, 3)):
        iterate(watch)
    bucket.check(average)
    if do_without_sharing(device):
        return {}
    figures = times("host", share(watch.measured))
    before, count = md.stats()["batches"], arguments.pick(20, 2)
    work = profile_calls(partial(bucket.fill, md.rank() + 1), bucket.run, count, device)
    batches = (md.stats()["batches"] - before) / count
    waits = work.waits / count + has_waited(bucket, ranks, device)
    counts = {"launches": work.launches / count, "waits": waits, "batches": batches}
    return figures | most_of_any_rank(counts)
