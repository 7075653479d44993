"""Prints the peak of a rank's memory while it trains a model sharded, and what the formula says.

mydistrun -np N python sharded_peak.py STAGE MILLIONS_OF_PARAMETERS
"""

from __future__ import annotations

import json
import sys

import torch
from multiproc.memory_use import bytes_in, forget_peak

import mydist as md

WIDTH = 1000


def one_step(model: torch.nn.ModuleList, optimizer: torch.optim.Optimizer) -> None:
    """Activations are one row; each layer has a gradient of its own size."""
    output = torch.ones(1, WIDTH)
    for layer in model:
        output = layer(output)
    output.sum().backward()
    optimizer.step()
    optimizer.zero_grad()


def make(stage: int, layers: int) -> tuple[torch.nn.ModuleList, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers))
    adam = torch.optim.AdamW(model.parameters(), fused=True)
    if stage == 0:
        return model, md.DistributedOptimizer(adam, model.named_parameters())
    return model, md.ShardedOptimizer(adam, model.named_parameters(), stage)


def main() -> None:
    stage, layers = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    md.init()
    one_step(*make(stage, 2))  # Code and threads are loaded by now.
    forget_peak()
    before = bytes_in("status", "VmRSS") - bytes_in("status", "RssShmem")
    shared_before = bytes_in("smaps_rollup", "Pss_Shmem")
    model, optimizer = make(stage, layers)
    for _ in range(2):
        one_step(model, optimizer)
    # Memory that ranks share counts once for all of them.
    private = bytes_in("status", "VmHWM") - bytes_in("status", "RssShmem") - before
    md.barrier()
    shared = bytes_in("smaps_rollup", "Pss_Shmem") - shared_before
    md.barrier()
    use = md.memory_plan(model, stage, md.size(), torch.optim.AdamW).use
    live = use.buckets + use.padding
    row = {"rank": md.rank(), "peak": private + shared, "states": use.total - live, "live": live}
    print(json.dumps(row), flush=True)
    md.shutdown()


if __name__ == "__main__":
    main()
