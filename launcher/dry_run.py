"""Lines of `mydistrun --dry-run`: ranks and variables, with every foreign value hidden."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence

from mydist.launcher.environment import (
    SECRET,
    Endpoints,
    identity_environment,
    matches,
    redact,
)
from mydist.launcher.hosts import Host
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.placement import RankPlacement

AT_START = "<chosen at start>"
# Shown whoever set them, unless the name looks like a secret.
HARMLESS = ("PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH", "OMP_*", "NCCL_*")


def host_lines(
    spec: JobSpec,
    host: Host,
    way: str,
    argv: Sequence[str],
    env: Mapping[str, str],
    ranks: Sequence[RankPlacement],
) -> list[str]:
    """How a host is reached, and what each of its `ranks` runs with which variables."""
    lines = [f"host {host.name}: {way}"]
    for rank in ranks:
        identity = identity_environment(rank, Endpoints(AT_START, 0, AT_START, AT_START))
        identity["MASTER_PORT"] = identity["MYDIST_JOB_KEY_FD"] = AT_START
        lines.append(f"  rank {rank.rank}: {shlex.join(argv)}")
        lines += environment_lines(spec, {**env, **identity}, identity.keys())
    return lines


def environment_lines(
    spec: JobSpec, env: Mapping[str, str], known: Iterable[str] = ()
) -> list[str]:
    """The variables. Shown are the values of flags, harmless ones, and those of the `known`."""
    # Everything else may be a secret.
    harmless = {name for name in env if matches(name, HARMLESS) and not matches(name, SECRET)}
    shown = {*spec.tunables, "MYDIST_CONTROLLER", *known, *harmless}
    return [f"    {name}={value}" for name, value in redact(env, frozenset(shown)).items()]
