"""Trains the same Sync tables on 1, 2 and 3 servers: server_counts.py

Rank 0 prints for each number of servers `SERVERS {number: …, digests: …, folded: …}`: the digests
of the tables by rule, and whether plain SGD has the bits of a mean that NumPy folds in the order of
the workers.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import time
from typing import Any

import numpy as np
import torch

import mydist as md

STEPS, ELEMENTS, ROWS, WIDTH = 4, 700_001, 5000, 3
RULES = (
    md.ps.SGD(lr=0.5),
    md.ps.SGD(lr=0.1, momentum=0.9, dampening=0.5),
    md.ps.Adam(lr=0.01),
    md.ps.AdaDelay(smoothness=1.0, c=1.0),
    md.ps.AdaptiveRevision(lr=0.1),
)


def gradient(rank: int, step: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Of magnitudes that lose bits in any other order of the ranks."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(shape, generator=generator) * 100.0**rank


def trained(rule: md.ps.Rule, pauses: random.Random) -> tuple[torch.Tensor, torch.Tensor]:
    name = repr(rule)
    dense = md.ps.Table(f"dense {name}", torch.ones(ELEMENTS), rule)
    rows = md.ps.RowTable(
        f"rows {name}", ROWS, WIDTH, rule, md.ps.Normal(0.1), md.ps.Sync(), seed=7
    )
    for step in range(STEPS):
        time.sleep(pauses.random() * 0.02)  # Pushes come in other orders each time.
        dense.push_pull(gradient(md.rank(), step, (ELEMENTS,)))
        ids = torch.arange(step * 50 + md.rank(), ROWS, 3 + step)
        rows.pull(ids[:20])
        rows.push(ids, gradient(md.rank(), step, (len(ids), WIDTH)))
    return dense.pull(), rows.pull(torch.arange(ROWS))


def folded() -> Any:
    """The dense table of the first rule: float32, the ranks in their order."""
    w = np.ones(ELEMENTS, np.float32)
    for step in range(STEPS):
        total = gradient(0, step, (ELEMENTS,)).numpy()
        for rank in range(1, md.size()):
            total = total + gradient(rank, step, (ELEMENTS,)).numpy()
        w -= np.float32(0.5) * (total / np.float32(md.size()))
    return w


def main() -> None:
    for number in (1, 2, 3):
        os.environ["MYDIST_SERVERS"] = str(number)
        md.init()
        pauses = random.Random(10 * number + md.rank())
        digests, is_folded = {}, False
        for rule in RULES:
            dense, rows = trained(rule, pauses)
            bits = dense.numpy().tobytes() + rows.numpy().tobytes()
            digests[repr(rule)] = hashlib.sha256(bits).hexdigest()
            if rule is RULES[0]:
                is_folded = bool((dense.numpy() == folded()).all())
        shares = md.ps.Table("share", torch.zeros(ELEMENTS)).explain()
        if md.rank() == 0:
            row = {"number": len(shares), "digests": digests, "folded": is_folded}
            print(f"SERVERS {json.dumps(row)}", flush=True)
        md.shutdown()


if __name__ == "__main__":
    main()
