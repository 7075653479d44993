"""The smallest mydist program: every rank contributes a number, every rank gets the sum.

mydistrun -np 4 python examples/allreduce.py
"""

import torch

import mydist as md

md.init()
mine = torch.tensor([float(md.rank() + 1)])
total = md.allreduce(mine, op=md.Sum)
print(f"rank {md.rank()} of {md.size()}: gave {mine.item():.0f}, all together {total.item():.0f}")
md.shutdown()
