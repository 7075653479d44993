"""What was measured, and on what: the machine and the commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import torch

import mydist as md

from .suites import ROOT


def describe_machine(with_gpu: bool = False) -> str:
    """Processor, cores that may be used, kernel; and the GPU that torch takes, if it has one."""
    model = platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    text = f"{model}, {len(os.sched_getaffinity(0))} cores, Linux {platform.release()}"
    if not with_gpu or not torch.cuda.is_available():
        return text
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, NCCL {md.nccl_built()}"
    return f"{text}; {torch.cuda.get_device_name()}, {versions}"


def commit() -> str:
    """The commit of this tree as git describes it, or unknown."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:  # There is no git; by now all is measured.
        return "unknown"
    return done.stdout.strip() or "unknown"
