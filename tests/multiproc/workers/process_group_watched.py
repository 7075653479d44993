"""Process groups that are watched: a few operations, and then what the argument says.

"with_init" and "without_init" end in order; "silent": rank 1 stops itself, and the others wait for
it in a collective and, on the last rank, for a message; "late": the last rank waits for a message
that comes too late, and then for the next one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import mydist as md
import mydist.c10d

SUMS = 5
VICTIM = 1


def main() -> None:
    """Rank by rank."""
    how = sys.argv[1]
    if how == "with_init":
        md.init()
    dist.init_process_group("mydist", timeout=timedelta(seconds=60))
    rank = dist.get_rank()
    tensor = torch.ones(4)
    for _ in range(SUMS):
        dist.all_reduce(tensor)
    pair = dist.new_group([0, VICTIM])
    if rank == 0:
        dist.send(torch.ones(3), VICTIM, group=pair, tag=7)
    if rank == VICTIM:
        dist.recv(torch.ones(3), 0, group=pair, tag=7)
    if how == "silent":
        silent(rank, tensor)
    if how == "late":
        late(rank)
    groups = mydist.c10d.stats()
    row = {"groups": groups, "all": md.stats() if md.is_initialized() else {}}
    print(f"STATS {json.dumps(row)}", flush=True)
    dist.destroy_process_group()


def late(rank: int) -> None:
    """The first message is sent after the time-out of its receiver, the second one at once."""
    last, folder = dist.get_world_size() - 1, Path(sys.argv[2])
    got = torch.zeros(1)
    if rank == last:
        begin = time.monotonic()
        try:
            dist.recv(got, VICTIM, tag=1)
        except dist.DistBackendError as error:
            print(f"LOST after {time.monotonic() - begin:.2f} s: {error}", flush=True)
        (folder / "told").touch()
        dist.recv(got, VICTIM, tag=2)
        assert got.item() == 2.0
        (folder / "over").touch()
    if rank == VICTIM:
        await_file(folder / "told")
        dist.send(torch.full((1,), 2.0), last, tag=2)
    await_file(folder / "over")  # Not in a barrier, which would have the same limit.


def await_file(path: Path) -> None:
    """Until it is there."""
    while not path.exists():
        time.sleep(0.01)


def silent(rank: int, tensor: torch.Tensor) -> None:
    """Waits for the rank that has stopped itself."""
    time.sleep(0.5)  # Heartbeats tell what the ranks have completed.
    if rank == VICTIM:
        os.kill(os.getpid(), signal.SIGSTOP)
    begin = time.monotonic()
    try:
        if rank == dist.get_world_size() - 1:
            dist.recv(tensor, VICTIM)
        else:
            dist.all_reduce(tensor)
    except dist.DistBackendError as error:
        print(f"LOST after {time.monotonic() - begin:.2f} s: {error}", flush=True)
        raise


main()
