"""A11: bytes that cross from host to host in an allreduce, next to 2n(N-1)/N per host.

    mydistrun -np 4 python -m benchmarks.jobs.hierarchy_bytes FILE

The four ranks pretend to be on two hosts. Counted by mydist itself.
"""

from __future__ import annotations

import os

import torch

import mydist as md
from benchmarks.jobs.figures import JobArguments, parse_arguments, run_job

_HOSTS = 2
_COUNTER = "inter_host_bytes_sent"


def measure(arguments: JobArguments) -> dict[str, float]:
    """Bytes that the host that sends most has sent, the formula, and the difference."""
    data = torch.ones(arguments.pick(1 << 20, 1 << 10))
    if _COUNTER not in md.stats():
        return {}
    md.allreduce_(data, op=md.Sum, name="bytes")
    before = md.stats()[_COUNTER]
    md.allreduce_(data.fill_(1), op=md.Sum, name="bytes")
    sent = md.stats()[_COUNTER] - before
    if not bool(data.eq(md.size()).all()):
        raise RuntimeError(f"rank {md.rank()} got a wrong sum")
    by_rank = md.allgather(torch.tensor([sent], dtype=torch.int64), name="sent").tolist()
    local = md.size() // _HOSTS
    worst = max(sum(by_rank[host * local : (host + 1) * local]) for host in range(_HOSTS))
    formula = 2 * data.numel() * data.element_size() * (_HOSTS - 1) / _HOSTS
    return {"sent_bytes": worst, "formula_bytes": formula, "excess_bytes": worst - formula}


def main() -> None:
    """Measures and writes the figures."""
    arguments = parse_arguments()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    os.environ["MYDIST_HOST_ID"] = f"fake-host-{rank * _HOSTS // size}"
    run_job(arguments, measure)


if __name__ == "__main__":
    main()
