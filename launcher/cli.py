"""The entry point of `mydistrun`: arguments in, exit code out."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
from collections.abc import Mapping, Sequence

from mydist.launcher.check_build import check_build, doctor
from mydist.launcher.children import children_of
from mydist.launcher.elastic.job import run_elastic_job
from mydist.launcher.errors import LaunchError, UsageError, is_limit, start_error
from mydist.launcher.flags import format_help, parse_flags
from mydist.launcher.horovod_flags import translated
from mydist.launcher.job import run_job
from mydist.launcher.platforms.elastic import describe_elastic
from mydist.launcher.platforms.table import platform_for
from mydist.launcher.settings import make_job_spec


def main(
    arguments: Sequence[str] | None = None, environment: Mapping[str, str] | None = None
) -> int:
    """Runs `mydistrun` with these arguments (sys.argv by default); returns its exit code.

    0: all ranks succeeded; else the first failing rank's code, 128 + N for signal N; 2 for wrong
    usage, 1 when the job could not start, 126 or 127 when the program cannot be run or is missing.
    """
    environment = os.environ if environment is None else environment
    try:
        return _run(sys.argv[1:] if arguments is None else arguments, environment)
    except LaunchError as error:
        print(f"mydistrun: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if not is_limit(error):
            raise
        limit = start_error("the job", error)
        print(f"mydistrun: {limit}", file=sys.stderr)
        return limit.exit_code
    except KeyboardInterrupt:  # before the job handles signals
        return 128 + signal.SIGINT


def _run(arguments: Sequence[str], environment: Mapping[str, str]) -> int:
    arguments, environment = translated(arguments, environment)
    parsed = parse_flags(arguments)
    if parsed.values.get("help"):
        return _print(format_help())
    if parsed.values.get("version"):
        return _print(f"mydistrun {_version()}")
    if parsed.values.get("check-build"):
        return check_build(_print)
    if parsed.values.get("doctor"):
        return doctor(_print)
    _require_working_directory()
    spec = make_job_spec(parsed.values, parsed.command, environment)
    for warning in spec.warnings:
        print(f"mydistrun: warning: {warning}", file=sys.stderr)
    if spec.dry_run and spec.elastic is not None:
        return _print("\n".join(describe_elastic(spec, environment)))
    if spec.dry_run:
        children = children_of(spec)
        platform = platform_for(spec, children.ranks)
        return _print("\n".join(platform.describe(spec, environment, children)))
    run = run_job if spec.elastic is None else run_elastic_job
    return run(spec, environment)


def _print(text: str) -> int:
    """Prints lines to standard output; returns the exit code."""
    try:
        print(text, flush=True)
        return 0
    except BrokenPipeError:  # as `mydistrun --dry-run … | head` has it; the rest has no reader
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise LaunchError(f"cannot write to the standard output: {error.strerror}") from None


def _require_working_directory() -> None:
    """Ranks start where mydistrun was started."""
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(
            f"the working directory does not exist any more ({error.strerror}); "
            "change to an existing directory"
        ) from None


def _version() -> str:
    try:
        return importlib.metadata.version("mydist")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"
