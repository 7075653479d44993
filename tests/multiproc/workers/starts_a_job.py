"""Rank 0 starts a job of its own, by the command in the arguments, before or after init()."""

from __future__ import annotations

import os
import subprocess
import sys

import torch

import mydist as md


def main() -> None:
    when, *command = sys.argv[1:]
    if when == "after":
        md.init()
    number = os.environ.get("MYDIST_RANK") or os.environ["OMPI_COMM_WORLD_RANK"]
    if number == "0":
        subprocess.run(command, check=True)
    md.init()
    assert md.allreduce(torch.ones(1), op=md.Sum).item() == md.size()


if __name__ == "__main__":
    main()
