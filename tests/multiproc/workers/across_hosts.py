"""What ranks on pretended hosts send to each other: across_hosts.py

Each collective once; rank 0 prints, as one JSON line, the bytes that each rank sent to other hosts.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import torch
from multiproc.pretended_hosts import pretend_hosts

import mydist as md

COUNT = 3 << 18


def sum_is_right(dtype: torch.dtype, count: int) -> None:
    data = torch.arange(count).remainder(5).to(dtype) + md.rank()
    expected = torch.arange(count).remainder(5).to(dtype) * md.size() + sum(range(md.size()))
    assert torch.equal(md.allreduce(data, op=md.Sum), expected), f"{count} of {dtype}"


def broadcast_is_right() -> None:
    data = torch.full((COUNT,), float(md.rank()))
    assert torch.equal(md.broadcast(data, 1), torch.ones(COUNT))


def allgather_is_right() -> None:
    gathered = md.allgather(torch.full((COUNT,), float(md.rank())))
    assert torch.equal(gathered, torch.arange(md.size()).float().repeat_interleave(COUNT))


def reducescatter_is_right() -> None:
    rows = torch.arange(md.size() * COUNT).remainder(7).float()
    own = rows[md.rank() * COUNT : (md.rank() + 1) * COUNT]
    assert torch.equal(md.reducescatter(rows, op=md.Sum), own * md.size())


def sent_by(collective: Callable[[], None]) -> int:
    """Bytes to other hosts. Counts are published a cycle late, hence a tensor without bytes."""
    md.allreduce(torch.empty(0))
    md.allreduce(torch.empty(0))
    before = md.stats()["inter_host_bytes_sent"]
    collective()
    md.allreduce(torch.empty(0))
    md.allreduce(torch.empty(0))
    return md.stats()["inter_host_bytes_sent"] - before


def main() -> None:
    pretend_hosts()
    md.init()
    report = {
        "float32": sent_by(lambda: sum_is_right(torch.float32, COUNT)),
        "small": sent_by(lambda: sum_is_right(torch.float32, 11)),
        "odd": sent_by(lambda: sum_is_right(torch.int64, 99991)),
        "bfloat16": sent_by(lambda: sum_is_right(torch.bfloat16, COUNT)),
        "broadcast": sent_by(broadcast_is_right),
        "allgather": sent_by(allgather_is_right),
        "reducescatter": sent_by(reducescatter_is_right),
    }
    rows = md.allgather_object(report)
    if md.rank() == 0:
        print("REPORT " + json.dumps(rows), flush=True)
    md.shutdown()


if __name__ == "__main__":
    main()
