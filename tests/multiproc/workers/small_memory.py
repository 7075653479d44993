"""Trains a little on random data; rank 0 prints the losses.

Arguments: parameters in KiB, steps, and the stage of sharding, if there is one.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time

import torch

import mydist as md
from mydist import _C

began = time.monotonic()
md.init()
init_s = time.monotonic() - began
torch.manual_seed(md.rank())
width = 64
rows = int(sys.argv[1]) * 1024 // (4 * width)
model = torch.nn.Sequential(torch.nn.Linear(width, rows, bias=False), torch.nn.Linear(rows, 1))
# First: what is broadcast may need memory as well, and one warning is all there is.
wrap = (
    functools.partial(md.ShardedOptimizer, stage=int(sys.argv[3]))
    if len(sys.argv) > 3
    else md.DistributedOptimizer
)
optimizer = wrap(
    torch.optim.SGD(model.parameters(), lr=0.001), named_parameters=model.named_parameters()
)
md.broadcast_parameters(model.state_dict(), root_rank=0)
losses = []
for _ in range(int(sys.argv[2])):
    optimizer.zero_grad()
    loss = (model(torch.randn(8, width)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(md.allreduce(loss.detach(), name="loss").item())
free_bytes = 0
if os.path.isdir("/dev/shm"):
    left = os.statvfs("/dev/shm")
    free_bytes = left.f_bavail * left.f_frsize
if md.rank() == 0:
    report = {"losses": losses, "free": free_bytes, "backend": _C.backend_name(), "init_s": init_s}
    print("TRAINED " + json.dumps(report), flush=True)
md.shutdown()
