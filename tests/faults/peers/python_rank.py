"""A rank of another library: python_rank.py LIBRARY PHASE ACT VICTIM FOLDER"""

from __future__ import annotations

import datetime
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from multiproc.watched_job import write_row

from faults.catalogue import Act, Phase
from faults.peers import TIMEOUT_S

STEPS_BEFORE = 5
WIDTH = 2048  # 16 MiB of float32 in a square.


def ddp() -> tuple[int, Callable[[], object]]:
    """The rank, and a step whose backward reduces 16 MiB."""
    limit = datetime.timedelta(seconds=TIMEOUT_S)
    torch.distributed.init_process_group("gloo", timeout=limit)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(WIDTH, WIDTH, bias=False))
    data = torch.ones(1, WIDTH)
    return torch.distributed.get_rank(), lambda: model(data).sum().backward()


def horovod() -> tuple[int, Callable[[], object]]:
    """The rank, and a call that reduces 16 MiB."""
    import horovod.torch as hvd

    hvd.init()
    data = torch.ones(WIDTH, WIDTH)
    return hvd.rank(), lambda: hvd.allreduce(data, name="x")


def main() -> None:
    """As ../worker.py."""
    library, phase, act, victim, folder = sys.argv[1], *map(str, sys.argv[2:])
    rank, step = {"ddp": ddp, "horovod": horovod}[library]()
    place = Path(folder)
    for _ in range(STEPS_BEFORE):
        step()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # Each is to say first what it has seen.
    write_row(place, f"ready{rank}", {"pid": os.getpid()})
    if Phase(phase) is Phase.BETWEEN and rank == int(victim):
        while not (place / "go").exists():
            time.sleep(0.002)
        write_row(place, "struck", {"at": time.monotonic()})
        assert Act(act) is Act.RAISE
        raise RuntimeError("broken on purpose")
    try:
        while True:
            step()
    except Exception as error:  # Each library has its own.
        write_row(place, f"learned{rank}", {"at": time.monotonic(), "text": str(error)})
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise


if __name__ == "__main__":
    main()
