"""`mydistrun --check-build`: what the installed core library was built with and can load.

And `--doctor`: what this machine offers to mydist besides. Imports neither torch nor the core.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

from mydist._torch_version import built_for, present, refusal
from mydist.job.nccl_folders import nccl_folders

LOW_SHM_BYTES = 256 << 20


def library_path() -> Path:
    """Where the core library of this installation is."""
    import mydist

    package = Path(mydist.__file__ or "").parent if mydist.__file__ else Path(__file__).parents[1]
    return package / "lib" / "libmydist.so"


def program_path() -> Path:
    """Where the program of a server is in this installation, if it was built."""
    return library_path().parents[1] / "bin" / "mydist-server"


def has_program() -> bool:
    """Whether it can be run."""
    path = program_path()
    return path.is_file() and os.access(path, os.X_OK)


def read_build_report(path: Path) -> str:
    """What the core library says about itself, as a table. Raises OSError when it is missing or
    does not load, ValueError when its answer is not understood."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; install mydist with pip install .")
    library = ctypes.CDLL(str(path))
    try:
        function = library.mydist_build_report
    except AttributeError:
        raise ValueError(
            f"{path} has no build report; it belongs to another version of mydist"
        ) from None
    function.restype = ctypes.c_char_p
    function.argtypes = [ctypes.c_char_p]
    return format_build_report(function(os.fsencode(":".join(nccl_folders()))) or b"")


def format_build_report(raw: bytes) -> str:
    """A row per backend: [x] usable, with what it is; [ ] not, with the reason. ValueError."""
    try:
        report = json.loads(raw)
        lines = [f"mydist {report['version']}", "", "Backends:"]
        width = max((len(backend["name"]) for backend in report["backends"]), default=0)
        for backend in report["backends"]:
            usable = backend["built"] and backend["available"]
            detail = backend["description" if usable else "reason"]
            row = f"  [{'x' if usable else ' '}] {backend['name']:<{width}}  {detail}"
            lines.append(row.rstrip())
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the build report of the library is malformed: {error!r}") from None
    return "\n".join(lines)


def format_torch(built: str, found: str) -> str:
    """Whether the binding fits the torch of this Python."""
    why = refusal(built, found)
    fits = bool(built and found) and not why
    text = why or f"compiled for {built or 'none (run make build)'}, found {found or 'none'}"
    return f"\ntorch:\n  [{'x' if fits else ' '}] {text}"


def format_torch_backend(package: Path, built: str, found: str) -> str:
    """Whether torch.distributed can have the backend "mydist"; it is not loaded for this."""
    if why := refusal(built, found):
        return f"  [ ] torch.distributed: {why}"
    files = [package / f"_c10d{suffix}" for suffix in EXTENSION_SUFFIXES]
    if not any(file.exists() for file in files):
        return (
            "  [ ] torch.distributed: mydist._c10d was not built for this Python (run make build)"
        )
    return '  [x] torch.distributed: init_process_group("mydist")'


def check_build(write: Callable[[str], object], path: Path | None = None) -> int:
    """Prints the table, or why there is none; returns the exit code."""
    try:
        report = read_build_report(path or library_path())
    except (OSError, ValueError) as error:
        write(f"mydist core library: not usable: {error}")
        return 1
    write(report)
    versions = built_for(), present()
    write(format_torch(*versions))
    write(format_torch_backend(library_path().parents[1], *versions))
    return 0


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
