"""The command line of a rank: what the user gave, turned into an argument vector."""

from __future__ import annotations

import os
import shutil
import sys

from mydist.launcher.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, LaunchError
from mydist.launcher.job_spec import JobSpec


def resolve_command(spec: JobSpec, path: str) -> list[str]:
    """The argument vector on this machine. A `.py` file that is not executable runs under this
    Python, `-m` runs a module. Raises LaunchError with 127 or 126, as a shell would end."""
    if spec.module is not None:
        return [sys.executable, "-m", spec.module, *spec.command]
    program, *arguments = spec.command
    if program.endswith(".py"):
        if not os.path.isfile(program):
            raise LaunchError(f"script {program!r} not found in {os.getcwd()}", EXIT_NOT_FOUND)
        if os.access(program, os.X_OK):
            return [os.path.abspath(program), *arguments]
        return [sys.executable, program, *arguments]
    if os.sep in program:
        if not os.path.exists(program):
            raise LaunchError(f"command {program!r} not found", EXIT_NOT_FOUND)
        if os.path.isdir(program) or not os.access(program, os.X_OK):
            raise LaunchError(f"command {program!r} is not an executable file", EXIT_NOT_EXECUTABLE)
        return [program, *arguments]
    if shutil.which(program, path=path) is None:
        raise LaunchError(f"command {program!r} not found in PATH", EXIT_NOT_FOUND)
    return [program, *arguments]


def remote_command(spec: JobSpec) -> list[str]:
    """The command on another host, which has its own files: only `.py` is looked at here."""
    python = spec.ssh.remote_python or sys.executable
    if spec.module is not None:
        return [python, "-m", spec.module, *spec.command]
    program, *arguments = spec.command
    if program.endswith(".py") and not os.access(program, os.X_OK):
        return [python, program, *arguments]
    return [os.path.abspath(program) if program.endswith(".py") else program, *arguments]
