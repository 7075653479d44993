"""G6: what the engine costs for one fused bucket of gradients on a GPU.

    mydistrun -np 1 python -m benchmarks.jobs.gpu_bucket FILE --gpu
    mydistrun -np 2 python -m benchmarks.jobs.gpu_bucket FILE --gpu

A bucket is 32 tensors that do not lie one after the other, averaged in place: one call of the
binding, whose caller drives the engine. Its host time is that of the call, which waits for no GPU;
with two ranks it has in it the wait for the other one, and the schedule is frozen. Once more under
torch's profiler it is counted what was put on the GPU (kernels, copies, fills), and how often a
thread waited for it by a call of the driver; the barriers are left out then, so the schedule thaws,
which changes neither. A call made while the GPU is busy for long shows waits of any other kind. The
rank with the most counts. Two ranks share the GPU, and reduce over NCCL, or there are no figures.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

import mydist as md
from benchmarks.jobs.figures import JobArguments, parse_arguments, times, write_figures
from mydist import _C
from mydist.bench.contest import Stopwatch, share
from mydist.bench.devices import synchronize
from mydist.bench.implementations import Mydist
from mydist.bench.problem import WrongResult

_TENSORS, _ELEMENTS = 32, 32 << 10  # 4 MiB.
_LEAST_WARM_UPS, _MOST_WARM_UPS = 5, 300
_MARK = "mydist.bucket"
_FIRST_NCCL_TO_SHARE = 23003
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_LONG_CYCLES = 2_000_000_000  # Of the GPU: about a second.
_WAIT = re.compile(r"(Device|Stream|Event|Ctx)Synchronize|^cu(da)?Memcpy(?!.*Async)")


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


class Blind(Exception):
    """The profiler has not seen on the GPU what the benchmark itself has put there."""


def count_work(trace: Mapping[str, Any], buckets: int, on_gpu: bool) -> dict[str, float]:
    """Of a trace of torch's profiler, per bucket: work for the GPU, and waits between the marks.

    Raises:
        Blind: on a GPU, of what was done and waited for before the first mark nothing is in it.
    """
    events = [event for event in trace["traceEvents"] if event.get("ph") == "X"]
    # The profiler gives each mark once more, as what the GPU did meanwhile.
    marks = [
        (e["ts"], e["ts"] + e["dur"])
        for e in events
        if e["name"] == _MARK and e.get("cat") == "user_annotation"
    ]
    first = min(begin for begin, _ in marks)
    work = [e["ts"] for e in events if e.get("cat") in _WORK]
    waits = [e["ts"] for e in events if e.get("cat") in _CALLS and _WAIT.search(e["name"])]
    if on_gpu and not (any(at < first for at in work) and any(at < first for at in waits)):
        raise Blind("the profiler shows nothing of what the GPU has done")
    launches = sum(at >= first for at in work)
    inside = sum(any(begin <= at <= end for begin, end in marks) for at in waits)
    return {"launches": launches / buckets, "waits": inside / buckets}


def profile_buckets(bucket: Bucket, count: int, device: torch.device) -> dict[str, float]:
    """Runs that many under the profiler; nothing else is put on the GPU meanwhile."""
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        bucket.fill(md.rank() + 1)
        for _ in range(count):
            with record_function(_MARK):
                bucket.run()
            synchronize(device)
    with tempfile.TemporaryDirectory(prefix="mydist-bench-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return count_work(json.loads(path.read_text(encoding="utf-8")), count, on_gpu)


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


def most_of_any_rank(counts: Mapping[str, float]) -> dict[str, float]:
    """Each count as on the rank that has most of it. Collective."""
    mine = torch.tensor([counts[name] for name in sorted(counts)], dtype=torch.float64)
    most = md.allreduce(mine, op=md.Max, name="bucket.counts").tolist()
    return dict(zip(sorted(counts), most, strict=True))


def measure(arguments: JobArguments) -> dict[str, float]:
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
    path = md.explain().facts.get("GPU path")
    if device.type == "cuda" and md.size() > 1 and (path is None or "NCCL" not in path.choice):
        print(f"without two ranks on one GPU: {path}", file=sys.stderr, flush=True)
        return {}
    figures = times("host", share(watch.measured))
    before, count = md.stats()["batches"], arguments.pick(20, 2)
    counts = profile_buckets(bucket, count, device)
    counts["batches"] = (md.stats()["batches"] - before) / count
    counts["waits"] += has_waited(bucket, ranks, device)
    return figures | most_of_any_rank(counts)


def let_ranks_share_the_gpu(rank: str, version: int) -> dict[str, str]:
    """The variables that make NCCL of that version take two ranks on one GPU."""
    if version >= _FIRST_NCCL_TO_SHARE:
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    return {"NCCL_HOSTID": f"mydist-bench-{rank}"}


def main() -> None:
    """Measures and writes the figures."""
    arguments = parse_arguments()
    if arguments.device.type == "cuda":
        os.environ.update(let_ranks_share_the_gpu(os.environ["RANK"], int(md.nccl_built())))
        os.environ["MYDIST_GPU_IPC"] = "off"
    md.init()
    write_figures(arguments, measure(arguments))
    md.shutdown()


if __name__ == "__main__":
    main()
