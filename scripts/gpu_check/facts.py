"""What the machine has: its GPU, and the versions of what the check uses."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_TELL_TORCH = """
import torch
nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "unknown"
print(f"{torch.__version__}, CUDA {torch.version.cuda}, NCCL {nccl}")
"""
_TELL_GPU = "import torch; print(torch.cuda.get_device_name())"
_TELL_PYTEST = "import pytest; print(pytest.__version__)"


def first_line(
    command: Sequence[str], pattern: str = ".+", environment: Mapping[str, str] | None = None
) -> str:
    """Of its output, what matches first; empty where it cannot be run."""
    try:
        run = subprocess.run(
            command,
            env={**os.environ, **(environment or {})},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(pattern, run.stdout)
    return found[0] if found and run.returncode == 0 else ""


def find_gpu() -> tuple[str, str]:
    """The GPU's name and driver, or "" and why there is none."""
    gpu, reason = _ask_driver()
    if not gpu:  # The driver's program may be missing where the driver is there.
        gpu = first_line([sys.executable, "-c", _TELL_GPU])
    return gpu, "" if gpu else reason


def _ask_driver() -> tuple[str, str]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    if shutil.which(query[0]) is None:
        return "", "no NVIDIA driver: nvidia-smi is not there"
    try:
        asked = subprocess.run(query, capture_output=True, text=True, check=False, timeout=60)
    except subprocess.TimeoutExpired:
        return "", "nvidia-smi: no answer"
    answer = (asked.stdout or asked.stderr).strip().splitlines()
    if asked.returncode != 0 or not answer:
        return "", f"nvidia-smi: {answer[0] if answer else asked.returncode}"
    return answer[0], ""


def gather(root: Path, gpu: str, commit: str, environment: Mapping[str, str]) -> dict[str, str]:
    """For the head of the table; `commit` where git cannot tell."""
    found = first_line(["git", "-C", str(root), "describe", "--always", "--dirty"])
    python = [sys.executable, "-c"]
    return {
        "GPU": gpu,
        "commit": commit or found or "unknown",
        "Python": sys.version.split()[0],
        "torch": first_line([*python, _TELL_TORCH]) or "none",
        "nvcc": first_line(["nvcc", "--version"], r"release .*") or "none",
        "pytest": first_line([*python, _TELL_PYTEST], environment=environment) or "none",
    }
