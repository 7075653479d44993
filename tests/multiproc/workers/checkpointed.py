"""A small resumable training: checkpointed.py FOLDER STEPS [forever]

Each rank prints "DRAW rank before after": what it draws from torch's generator around the resume.
With `forever` it trains until should_stop(), after printing "READY pid".
"""

from __future__ import annotations

import os
import sys

import torch

import mydist as md


def main() -> None:
    folder, steps, forever = sys.argv[1], int(sys.argv[2]), len(sys.argv) > 3
    md.init()
    torch.manual_seed(1000 + md.rank())
    own = float(torch.rand(()))
    torch.manual_seed(1000 + md.rank())
    model = torch.nn.Linear(2, 2)
    md.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.01), named_parameters=model.named_parameters()
    )
    torch.manual_seed(1000 + md.rank())
    with md.Checkpoint(folder, model=model, optimizer=optimizer) as checkpoint:
        print(f"DRAW {md.rank()} {own} {float(torch.rand(()))}", flush=True)
        step, end = checkpoint.step, checkpoint.step + steps
        print(f"START {step}", flush=True)
        while step < end or forever:
            optimizer.zero_grad()
            model(torch.rand(2, 2)).sum().backward()
            optimizer.step()
            step += 1
            if step == 3 and forever:
                print(f"READY {os.getpid()}", flush=True)
            if checkpoint.should_stop(step):
                print(f"STOPPED {step}", flush=True)
                break
        else:
            checkpoint.save(step)
    md.shutdown()


if __name__ == "__main__":
    main()
