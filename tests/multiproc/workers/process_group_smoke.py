"""One sum over the backend "mydist"; with the argument "kill", rank 1 ends before a second one."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch
import torch.distributed as dist

import mydist.c10d  # noqa: F401  (registers the backend)

dist.init_process_group("mydist")
tensor = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(tensor)
print(f"SUM {tensor.item()}", flush=True)
if sys.argv[1:] == ["kill"]:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        dist.all_reduce(tensor)
    except dist.DistBackendError as error:
        print(f"LOST after {time.monotonic() - begin:.2f} s: {error}", flush=True)
        sys.exit(1)
dist.destroy_process_group()
