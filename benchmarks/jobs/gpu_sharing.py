"""Ranks that share one GPU, and reduce over NCCL all the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

import torch

import mydist as md
from benchmarks.jobs.figures import JobArguments
from mydist.bench.devices import let_ranks_share_the_gpu


def prepare_to_share(arguments: JobArguments) -> None:
    """Has the ranks share the GPU, if the job is about one. Before mydist.init()."""
    if arguments.device.type == "cuda":
        os.environ.update(let_ranks_share_the_gpu(os.environ["RANK"], int(md.nccl_built())))
        os.environ["MYDIST_GPU_IPC"] = "off"


def do_without_sharing(device: torch.device) -> bool:
    """Whether several ranks on a GPU do not reduce over NCCL; says so. After the first batch."""
    if device.type != "cuda" or md.size() == 1:
        return False
    path = md.explain().facts.get("GPU path")
    if path is not None and "NCCL" in path.choice:
        return False
    print(f"without two ranks on one GPU: {path}", file=sys.stderr, flush=True)
    return True


def most_of_any_rank(counts: Mapping[str, float]) -> dict[str, float]:
    """Each count as on the rank that has most of it. Collective."""
    mine = torch.tensor([counts[name] for name in sorted(counts)], dtype=torch.float64)
    most = md.allreduce(mine, op=md.Max, name="bench.counts").tolist()
    return dict(zip(sorted(counts), most, strict=True))
