"""`mydistrun --doctor`: what this machine offers to mydist. Imports neither torch nor the core."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable

from mydist.launcher.check_build import check_build

LOW_SHM_BYTES = 256 << 20


def doctor(write: Callable[[str], object]) -> int:
    """Prints one line per finding; returns 0, or 1 when mydist itself is not usable."""
    write(f"python    {platform.python_version()} at {sys.executable}")
    write(f"torch     {_package_version('torch')}")
    write(f"machine   {platform.machine()}, {len(os.sched_getaffinity(0))} usable cores")
    write(f"ssh       {_program(['ssh', '-V'])}")
    write(f"mpirun    {_program(['mpirun', '--version'])}")
    write(f"/dev/shm  {_shared_memory()}")
    write("")
    return check_build(write)


def _package_version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "not installed for this python"


def _program(command: list[str]) -> str:
    path = shutil.which(command[0])
    if path is None:
        return "not found in PATH"
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return f"{path}, does not answer"
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return f"{path}, {lines[0].strip() if lines else 'version unknown'}"


def _shared_memory() -> str:
    try:
        usage = os.statvfs("/dev/shm")
    except OSError as error:
        return f"not usable: {error.strerror}"
    free_bytes = usage.f_bavail * usage.f_frsize
    hint = "; this is small: in a container raise --shm-size" if free_bytes < LOW_SHM_BYTES else ""
    return f"{free_bytes >> 20} MiB free of {usage.f_blocks * usage.f_frsize >> 20} MiB{hint}"
