"""Trains a little on random data; rank 0 prints the losses. Arguments: parameters in KiB."""

from __future__ import annotations

import json
import os
import sys

import torch

import mydist as md
from mydist import _C

md.init()
torch.manual_seed(md.rank())
width = 64
rows = int(sys.argv[1]) * 1024 // (4 * width)
model = torch.nn.Sequential(torch.nn.Linear(width, rows, bias=False), torch.nn.Linear(rows, 1))
md.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = md.DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.001), named_parameters=model.named_parameters()
)
losses = []
for _ in range(6):
    optimizer.zero_grad()
    loss = (model(torch.randn(8, width)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    losses.append(md.allreduce(loss.detach(), name="loss").item())
left = os.statvfs("/dev/shm")
if md.rank() == 0:
    report = {"losses": losses, "free": left.f_bavail * left.f_frsize, "backend": _C.backend_name()}
    print("TRAINED " + json.dumps(report), flush=True)
md.shutdown()
