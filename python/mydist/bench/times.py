"""Times of mydist alone, for a benchmark that runs over the other backend; private.

Started by mydistrun: python -m mydist.bench.times PATH DTYPE BYTES:ITERATIONS ...
Rank 0 writes one line of microseconds per size.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import mydist as md
from mydist.bench.allreduce import Mydist, Plan, run_size


def main() -> None:
    """Measures every size once."""
    path, dtype, pairs = Path(sys.argv[1]), getattr(torch, sys.argv[2]), sys.argv[3:]
    md.init()
    lines = []
    for pair in pairs:
        size, iterations = (int(part) for part in pair.split(":"))
        plan = Plan([size], dtype, rounds=1, iterations=iterations)
        lines.append(" ".join(f"{value:.3f}" for value in run_size(plan, Mydist(), size)))
    if md.rank() == 0:
        path.write_text("\n".join(lines) + "\n")
    md.shutdown()


if __name__ == "__main__":
    main()
