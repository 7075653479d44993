"""A job whose workers push at different paces, and tell what they have seen of the servers."""

from __future__ import annotations

import sys

import torch

import mydist as md

STEPS = 6


def main() -> None:
    md.init()
    md.start_timeline(sys.argv[1])
    dense = md.ps.Table("fc", torch.zeros(600_000), md.ps.SGD(lr=0.1), md.ps.SSP(2))
    rows = md.ps.RowTable("emb", 1000, 4, md.ps.Add())
    for step in range(STEPS):
        dense.push_pull(torch.ones(600_000))
        rows.push(torch.tensor([step]), torch.ones(1, 4))
        rows.pull(torch.tensor([step]))
    # The first of them waits for the last one.
    md.ps.Table("gate", torch.zeros(1), md.ps.Add()).push_pull(torch.ones(1))
    md.barrier()
    stats = md.stats()
    explained = str(md.explain())
    if md.rank() == 0:
        print(f"pushed {stats['ps_push_bytes']} pulled {stats['ps_pull_bytes']}")
        print(f"waited {stats['ps_wait_us'] > 0} again {stats['ps_repeated']}")
        print(stats["ps_staleness_max"] >= stats["ps_staleness_mean"] > 0)
        print(explained)
    md.shutdown()


if __name__ == "__main__":
    main()
