"""One allreduce; rank 0 prints what it found as a JSON line."""

from __future__ import annotations

import json

import torch

import mydist as md
from mydist import _C


def main() -> None:
    md.init()
    total = md.allreduce(torch.tensor([md.rank() + 1]), op=md.Sum)
    everyone = md.allgather_object(
        {
            "rank": md.rank(),
            "size": md.size(),
            "local_rank": md.local_rank(),
            "local_size": md.local_size(),
            "backend": _C.backend_name(),
            "total": int(total),
        }
    )
    if md.rank() == 0:
        print("RANKS " + json.dumps(everyone), flush=True)
    md.shutdown()


if __name__ == "__main__":
    main()
