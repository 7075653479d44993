"""What the jobs share: arguments, times as figures, and ranks that share one GPU."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import torch

import mydist as md
from mydist.bench.devices import let_ranks_share_the_gpu
from mydist.bench.results import Measured, quantile

Figures = dict[str, float]


@dataclass(frozen=True)
class JobArguments:
    """How a job is run."""

    smoke: bool
    device: torch.device = torch.device("cpu")

    def pick(self, usual: int, smoke: int) -> int:
        """A number of repetitions."""
        return smoke if self.smoke else usual


def times(name: str, measured: Measured) -> Figures:
    """NAME_us, the median, NAME_min_us and NAME_p99_us."""
    ordered = sorted(measured.times_us)
    return {
        f"{name}_us": quantile(ordered, 0.5),
        f"{name}_min_us": ordered[0],
        f"{name}_p99_us": quantile(ordered, 0.99),
    }


def most_of_any_rank(counts: Mapping[str, float]) -> Figures:
    """Each count as on the rank that has most of it. Collective."""
    mine = torch.tensor([counts[name] for name in sorted(counts)], dtype=torch.float64)
    most = md.allreduce(mine, op=md.Max, name="bench.counts").tolist()
    return dict(zip(sorted(counts), most, strict=True))


def share_the_gpu(arguments: JobArguments) -> None:
    """Has NCCL take several ranks on one GPU, if the job is about one. Before mydist.init()."""
    if arguments.device.type == "cuda":
        os.environ.update(let_ranks_share_the_gpu(os.environ["RANK"], int(md.nccl_built())))


def do_without_sharing(device: torch.device) -> bool:
    """Whether several ranks on a GPU do not reduce over NCCL; says so. After the first batch."""
    if device.type != "cuda" or md.size() == 1:
        return False
    path = md.explain().facts.get("GPU path")
    if path is not None and "NCCL" in path.choice:
        return False
    print(f"without two ranks on one GPU: {path}", file=sys.stderr, flush=True)
    return True
