"""The command line of a rank: what the user gave, turned into an argument vector."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence

from mydist.launcher.elf_file import missing_loader
from mydist.launcher.errors import EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, LaunchError
from mydist.launcher.job_spec import JobSpec

_PYTHON = re.compile(r"python[0-9.]*")
_PYTHON_SWITCHES = re.compile(r"-[bBdEiIOPqsSuvx]+")  # Those that take no value.
_MOST_INTERPRETERS = 5  # The kernel follows no more from one script to the next.


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
            require_runnable(program)
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
    require_runnable(found)
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


def require_runnable(program: str) -> None:
    """Raises LaunchError with 126 when the kernel would find nothing that runs the program.

    It says that a script does not exist when its interpreter does not, and that a binary does not
    exist without its loader. mpirun takes twenty lines to say that.
    """
    script = program
    for _ in range(_MOST_INTERPRETERS):
        first_line = _first_line(script)
        if first_line is None:
            return
        if b"\0" in first_line:  # A binary; the kernel knows its kind.
            _require_loader(program, script)
            return
        whose = "its first line" if script == program else f"the first line of {script!r}"
        named = re.match(rb"#![ \t]*([^ \t]+)", first_line)
        if named is None:
            raise _not_runnable(program, f"{whose} does not begin with '#!' and an interpreter")
        script = os.fsdecode(named[1])
        names = f"{whose} names the interpreter {script!r}"
        if not os.path.exists(script):
            raise _not_runnable(program, f"{names}, which does not exist")
        if not os.path.isfile(script) or not os.access(script, os.X_OK):
            raise _not_runnable(program, f"{names}, which is not an executable file")


def _require_loader(program: str, binary: str) -> None:
    loader = missing_loader(binary)
    if loader is not None:
        whose = f"its loader {loader!r}"
        if binary != program:
            whose = f"the loader {loader!r} of its interpreter {binary!r}"
        raise _not_runnable(program, f"{whose} does not exist")


def _first_line(program: str) -> bytes | None:
    """As much of it as the kernel reads; None if it cannot be read."""
    if not os.path.isfile(program):  # Opening a named pipe would wait for its writer.
        return None
    try:
        with open(program, "rb") as file:
            return file.read(256).partition(b"\n")[0]
    except OSError:
        return None


def _not_runnable(program: str, why: str) -> LaunchError:
    return LaunchError(f"command {program!r} cannot be executed: {why}", EXIT_NOT_EXECUTABLE)


def remote_command(spec: JobSpec) -> list[str]:
    """The command on another host, which has its own files: only `.py` is looked at here."""
    python = spec.ssh.remote_python or sys.executable
    if spec.module is not None:
        return [python, "-m", spec.module, *spec.command]
    program, *arguments = spec.command
    if program.endswith(".py") and not os.access(program, os.X_OK):
        return [python, program, *arguments]
    return [os.path.abspath(program) if program.endswith(".py") else program, *arguments]
