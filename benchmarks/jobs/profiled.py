"""What calls put on a GPU, as torch's profiler has seen it."""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from mydist.bench.devices import synchronize

_MARK = "mydist.profiled"
_WORK = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_WAIT = re.compile(r"(Device|Stream|Event|Ctx)Synchronize|^cu(da)?Memcpy(?!.*Async)")
_COLLECTIVE = re.compile("nccl", re.IGNORECASE)
# The clocks of GPU and host differ by microseconds: what was done before has to be so for both.
_APART_S = 0.001


class Blind(Exception):
    """The profiler has not seen on the GPU what is known to have been put there."""


@dataclass(frozen=True)
class Work:
    """Of so many calls together: kernels, copies and fills; NCCL's of them; waits of the host."""

    calls: int
    launches: int
    collectives: int
    waits: int


def count_work(trace: Mapping[str, Any], on_gpu: bool) -> Work:
    """Of a trace of torch's profiler, where each call has a mark; its waits are between them.

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
    work = [e for e in events if e.get("cat") in _WORK]
    waits = [e["ts"] for e in events if e.get("cat") in _CALLS and _WAIT.search(e["name"])]
    if on_gpu and not (any(e["ts"] < first for e in work) and any(at < first for at in waits)):
        raise Blind("the profiler shows nothing of what the GPU has done")
    launched = [e["name"] for e in work if e["ts"] >= first]
    collectives = sum(_COLLECTIVE.search(name) is not None for name in launched)
    inside = sum(any(begin <= at <= end for begin, end in marks) for at in waits)
    return Work(len(marks), len(launched), collectives, inside)


def profile_calls(
    prepare: Callable[[], object], call: Callable[[], object], count: int, device: torch.device
) -> Work:
    """Of `call`, made `count` times under the profiler, each time until the device is done.

    Nothing else may be put on the GPU meanwhile. `prepare` is not counted; it has to put something
    there, which is waited for and tells whether the profiler sees anything.

    Raises:
        Blind: it does not.
    """
    on_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as profiler:
        prepare()
        synchronize(device)
        time.sleep(_APART_S)
        for _ in range(count):
            with record_function(_MARK):
                call()
            synchronize(device)
    with tempfile.TemporaryDirectory(prefix="mydist-bench-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        return count_work(json.loads(path.read_text(encoding="utf-8")), on_gpu)
