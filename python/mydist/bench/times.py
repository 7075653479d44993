"""Times of mydist alone, for a benchmark that runs over the other backend; private.

Started by mydistrun: python -m mydist.bench.times PATH OP DTYPE BYTES:ITERATIONS ...
Rank 0 writes one line per size: CPU seconds, context switches, then microseconds per call.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

import mydist as md
from mydist.bench.contest import Plan, pin_to_core, run_size
from mydist.bench.implementations import Mydist


def main() -> None:
    """Measures every size once."""
    path, op, dtype = Path(sys.argv[1]), sys.argv[2], getattr(torch, sys.argv[3])
    md.init()
    pin_to_core(one_host=True)
    lines = []
    for pair in sys.argv[4:]:
        size, iterations = (int(part) for part in pair.split(":"))
        measured = run_size(Plan(op, [size], dtype, 1, iterations), Mydist(), size)
        numbers = [measured.cpu_seconds, measured.context_switches, *measured.times_us]
        lines.append(" ".join(f"{value:.9g}" for value in numbers))
    if md.rank() == 0:
        path.write_text("\n".join(lines) + "\n")
    md.shutdown()


if __name__ == "__main__":
    main()
