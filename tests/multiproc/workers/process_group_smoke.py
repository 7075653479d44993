"""One sum over the backend "mydist"; then what the argument says.

"kill": rank 1 ends before a second sum. "mydist://": the ranks meet so. "serialized" and a new
file, under mpirun: they meet by the file, with an MPI that allows one thread at a time.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import mydist.c10d  # noqa: F401  (registers the backend)

how = sys.argv[1] if len(sys.argv) > 1 else ""
if how == "serialized":
    import mpi4py

    mpi4py.rc.thread_level = "serialized"
    from mpi4py import MPI  # noqa: F401  (starts MPI)

if how == "serialized":
    rank, size = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    method = f"file://{sys.argv[2]}"
    dist.init_process_group("mydist", init_method=method, rank=rank, world_size=size)
else:
    dist.init_process_group("mydist", init_method=how if how == "mydist://" else None)
tensor = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(tensor)
print(f"SUM {tensor.item()}", flush=True)
if how == "kill":
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        dist.all_reduce(tensor)
    except dist.DistBackendError as error:
        print(f"LOST after {time.monotonic() - begin:.2f} s: {error}", flush=True)
        sys.exit(1)
dist.destroy_process_group()
