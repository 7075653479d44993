"""What the jobs share: the command line, start and end, and writing the figures on rank 0."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

import mydist as md
from mydist.bench.results import Measured, quantile


@dataclass(frozen=True)
class JobArguments:
    """JOB FILE [--smoke] [--gpu]"""

    path: Path
    smoke: bool
    device: torch.device = torch.device("cpu")

    def pick(self, usual: int, smoke: int) -> int:
        """A number of repetitions."""
        return smoke if self.smoke else usual


def parse_arguments() -> JobArguments:
    """From the command line."""
    flags = sys.argv[2:]
    device = torch.device("cuda", 0) if "--gpu" in flags else torch.device("cpu")
    return JobArguments(Path(sys.argv[1]), "--smoke" in flags, device)


def times(name: str, measured: Measured) -> dict[str, float]:
    """NAME_us, the median, NAME_min_us and NAME_p99_us."""
    ordered = sorted(measured.times_us)
    return {
        f"{name}_us": quantile(ordered, 0.5),
        f"{name}_min_us": ordered[0],
        f"{name}_p99_us": quantile(ordered, 0.99),
    }


def write_figures(arguments: JobArguments, figures: dict[str, float]) -> None:
    """Rank 0 writes and prints them; the others do nothing."""
    if md.rank() == 0:
        text = json.dumps(figures, indent=1)
        arguments.path.write_text(text + "\n", encoding="utf-8")
        print(text, flush=True)


def run_job(arguments: JobArguments, measure: Callable[[JobArguments], dict[str, float]]) -> None:
    """A rank of a job, from mydist.init() on; rank 0 writes the figures."""
    md.init()
    write_figures(arguments, measure(arguments))
    md.shutdown()
