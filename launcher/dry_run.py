"""`mydistrun --dry-run`: what would be started where, with every foreign value hidden."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping

from mydist.launcher.command import remote_command, resolve_command
from mydist.launcher.environment import (
    SECRET,
    Endpoints,
    forwarded_environment,
    identity_environment,
    matches,
    redact,
    requested_environment,
)
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.placement import RankPlacement, place_ranks
from mydist.launcher.platforms.mpi import mpirun_command
from mydist.launcher.platforms.ssh import ssh_command

AT_START = "<chosen at start>"
# Shown whoever set them, unless the name looks like a secret.
HARMLESS = ("PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH", "OMP_*", "NCCL_*")


def describe_job(spec: JobSpec, environment: Mapping[str, str]) -> str:
    """The text of the dry run. Raises LaunchError as the start itself would."""
    if spec.controller == "mpi":
        requested = requested_environment(spec, environment)
        lines = ["mpirun:", f"  {shlex.join(mpirun_command(spec, environment))}"]
        return "\n".join(lines + _environment_lines(requested, _shown(spec)))
    lines = []
    placements = place_ranks(spec.hosts, spec.num_proc)
    for host in dict.fromkeys(p.host for p in placements):
        remote = not spec.is_local(host)
        way = f"through: {shlex.join(ssh_command(host, spec.ssh))}" if remote else "directly"
        lines.append(f"host {host.name}: {way}")
        for placement in placements:
            if placement.host == host:
                lines += _rank_lines(spec, environment, placement, remote)
    return "\n".join(lines)


def _rank_lines(
    spec: JobSpec, environment: Mapping[str, str], placement: RankPlacement, remote: bool
) -> list[str]:
    if remote:
        argv = remote_command(spec)
    else:
        argv = resolve_command(spec, environment.get("PATH", os.defpath))
    identity = identity_environment(placement, Endpoints(AT_START, 0, AT_START, AT_START))
    identity["MASTER_PORT"] = identity["MYDIST_JOB_KEY_FD"] = AT_START
    env = {**requested_environment(spec, environment), **identity}
    if remote:
        env = {**forwarded_environment(environment), **env}
    shown = _shown(spec) | identity.keys()
    return [f"  rank {placement.rank}: {shlex.join(argv)}", *_environment_lines(env, shown)]


def _shown(spec: JobSpec) -> frozenset[str]:
    """Names whose values the flags of mydistrun gave; everything else may be a secret."""
    return frozenset(spec.tunables) | {"MYDIST_CONTROLLER"}


def _environment_lines(env: Mapping[str, str], shown: frozenset[str]) -> list[str]:
    harmless = {name for name in env if matches(name, HARMLESS) and not matches(name, SECRET)}
    return [f"    {name}={value}" for name, value in redact(env, shown | harmless).items()]
