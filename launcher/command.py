"""The command line of a rank: what the user gave, turned into an argument vector."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence

from mydist.launcher.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, LaunchError
from mydist.launcher.job_spec import JobSpec

_PYTHON = re.compile(r"python[0-9.]*")
_PYTHON_SWITCHES = re.compile(r"-[bBdEiIOPqsSuvx]+")  # Those that take no value.


def resolve_command(spec: JobSpec, environment: Mapping[str, str]) -> list[str]:
    """The argument vector on this machine. A `.py` file that is not executable runs under this
    Python, `-m` runs a module. Raises LaunchError with 127 or 126, as a shell would end."""
    if spec.module is not None:
        return [sys.executable, "-m", spec.module, *spec.command]
    program, *arguments = spec.command
    if program.endswith(".py"):
        if not os.path.isfile(program):
            raise _script_missing(program)
        if os.access(program, os.X_OK):
            require_interpreter(program)
            return [os.path.abspath(program), *arguments]
        return [sys.executable, program, *arguments]
    if os.sep in program:
        if not os.path.exists(program):
            raise LaunchError(f"command {program!r} not found", EXIT_NOT_FOUND)
        if not os.path.isfile(program) or not os.access(program, os.X_OK):
            raise LaunchError(f"command {program!r} is not an executable file", EXIT_NOT_EXECUTABLE)
        found: str | None = program
    else:
        found = shutil.which(program, path=environment.get("PATH", os.defpath))
    if found is None:
        raise LaunchError(f"command {program!r} not found in PATH", EXIT_NOT_FOUND)
    require_interpreter(found)
    if _PYTHON.fullmatch(os.path.basename(program)):
        _require_script(arguments)
    return [program, *arguments]


def _require_script(arguments: Sequence[str]) -> None:
    """Raises LaunchError with 127 when Python would not find its script.

    Python itself ends with 2, once per rank, which means wrong usage here.
    """
    script = next((word for word in arguments if not _PYTHON_SWITCHES.fullmatch(word)), "-")
    if not script.startswith("-") and not os.path.exists(script):
        raise _script_missing(script)


def _script_missing(script: str) -> LaunchError:
    return LaunchError(f"script {script!r} not found in {os.getcwd()}", EXIT_NOT_FOUND)


def require_interpreter(program: str) -> None:
    """Raises LaunchError with 126 when the first line of a script names no program.

    The kernel then says of the script itself that it does not exist.
    """
    if not os.path.isfile(program):  # Opening a named pipe would wait for its writer.
        return
    try:
        with open(program, "rb") as file:
            first_line = file.read(256).partition(b"\n")[0]  # the kernel reads no more
    except OSError:
        return
    named = re.match(rb"#![ \t]*([^ \t]+)", first_line)
    if named is not None and not os.path.exists(named[1]):
        interpreter = os.fsdecode(named[1])
        raise LaunchError(
            f"command {program!r} cannot be executed: its first line names the interpreter "
            f"{interpreter!r}, which does not exist",
            EXIT_NOT_EXECUTABLE,
        )


def remote_command(spec: JobSpec) -> list[str]:
    """The command on another host, which has its own files: only `.py` is looked at here."""
    python = spec.ssh.remote_python or sys.executable
    if spec.module is not None:
        return [python, "-m", spec.module, *spec.command]
    program, *arguments = spec.command
    if program.endswith(".py") and not os.access(program, os.X_OK):
        return [python, program, *arguments]
    return [os.path.abspath(program) if program.endswith(".py") else program, *arguments]
