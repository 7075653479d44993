"""A rank of a job that measures: mydistrun -np N python -m benchmarks.jobs NAME FILE [--smoke]
[--gpu]. Rank 0 writes the figures; NAME is one of JOBS."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import mydist as md
from mydist.bench.implementations import close_torch_gloo

from . import (
    comparisons,
    counters,
    gpu_bucket,
    gpu_slots,
    gpu_staging,
    gradients,
    servers,
    sharded,
    stragglers,
)
from .job import Figures, JobArguments, share_the_gpu

# What sets the environment before mydist.init(), if anything does, and what measures after it.
JOBS: dict[str, tuple[Callable[[JobArguments], None] | None, Callable[[JobArguments], Figures]]] = {
    "gradients": (None, gradients.measure),
    "latency": (counters.take_a_core, counters.measure_latency),
    "steady": (None, counters.measure_steady_state),
    "hierarchy-bytes": (counters.pretend_two_hosts, counters.measure_hierarchy_bytes),
    "recording": (None, comparisons.measure_recording),
    "servers": (None, servers.measure),
    "servers-tcp": (None, servers.measure),
    "server-rows": (None, servers.measure_rows),
    "server-rules": (None, servers.measure_rules),
    "stragglers": (None, stragglers.measure),
    "sharded": (None, sharded.measure),
    "gpu-overhead": (None, comparisons.measure_overhead),
    "gpu-slots": (share_the_gpu, gpu_slots.measure),
    "gpu-bucket": (share_the_gpu, gpu_bucket.measure),
    "gpu-staging": (gpu_staging.prepare, gpu_staging.measure),
}


def main() -> None:
    """Measures and writes the figures."""
    name, path, *flags = sys.argv[1:]
    device = torch.device("cuda", 0) if "--gpu" in flags else torch.device("cpu")
    arguments = JobArguments("--smoke" in flags, device)
    prepare, measure = JOBS[name]
    if prepare is not None:
        prepare(arguments)
    md.init()
    figures = measure(arguments)
    if md.rank() == 0:
        Path(path).write_text(json.dumps(figures), encoding="utf-8")
    close_torch_gloo()
    md.shutdown()


if __name__ == "__main__":
    main()
