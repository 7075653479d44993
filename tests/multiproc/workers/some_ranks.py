"""A job of rank 1 alone beside one of all others, then one of all; prints who took part."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

import mydist as md
from mydist.job import bootstrap


def groups(kind: str, launched: int, count: int) -> tuple[Any, Any]:
    """What init() is given on this rank, and what is refused later because it is another job."""
    mine = [1] if launched == 1 else [rank for rank in range(count) if rank != 1]
    if kind == "lists":
        return mine, [launched]
    from mpi4py import MPI

    return MPI.COMM_WORLD.Split(int(launched == 1), 0), MPI.COMM_WORLD


def refused(comm: Any, text: str) -> None:
    try:
        md.init(comm)
    except ValueError as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"init({comm!r}) was accepted")


def main() -> None:
    launched = bootstrap.launched_as()
    assert launched is not None
    rank, count = launched
    comm, other = groups(sys.argv[1], rank, count)
    refused([(rank + 1) % count], f"but this process was launched as rank {rank}; call init() only")
    refused([0, count], f"comm is ranks [0, {count}], but the job has ranks 0 to {count - 1}")
    seen: list[list[object]] = []
    md.init(comm)
    md.init(comm)
    if rank != 1:
        refused(other, "mydist is already initialized, as a job of ranks [0, 2")
    members = md.allgather(torch.tensor([rank])).tolist()
    seen.append([md.rank(), md.size(), members])
    md.shutdown()
    md.init()
    seen.append([md.rank(), md.size(), int(md.allreduce(torch.ones(1), op=md.Sum))])
    md.shutdown()
    print("JOBS " + json.dumps(seen), flush=True)


if __name__ == "__main__":
    main()
