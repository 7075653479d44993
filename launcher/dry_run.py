"""Lines of `mydistrun --dry-run`: ranks and variables, with every foreign value hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mydist.launcher import rank_ends
from mydist.launcher.environment import SECRET, Endpoints, identity_environment, matches
from mydist.launcher.hosts import Host
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.placement import RankPlacement

AT_START = "<chosen at start>"
REDACTED = "<redacted>"
# Shown wherever they were set, unless the name looks like a secret.
HARMLESS = ("PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH", "OMP_*", "NCCL_*")


def host_lines(
    host: Host,
    way: str,
    command: str,
    shared: Mapping[str, str],
    ranks: Sequence[RankPlacement],
) -> list[str]:
    """How a host is reached, and what each of its `ranks` runs with which variables.

    `shared` is of variable_lines(), made once: thousands of hosts have the same variables.
    """
    lines = [f"host {host.name}: {way}"]
    for rank in ranks:
        identity = identity_environment(rank, Endpoints(AT_START, 0, AT_START, AT_START))
        for name in ("MASTER_PORT", "MYDIST_JOB_KEY_FD", rank_ends.VARIABLE):
            identity[name] = AT_START
        own = {name: f"    {name}={value}" for name, value in identity.items()}
        lines.append(f"  rank {rank.rank}: {command}")
        merged = {**shared, **own}
        lines += [merged[name] for name in sorted(merged)]
    return lines


def variable_lines(spec: JobSpec, env: Mapping[str, str]) -> dict[str, str]:
    """The line of each variable. Shown are the values of flags and harmless ones."""
    # Everything else may be a secret.
    harmless = {name for name in env if matches(name, HARMLESS) and not matches(name, SECRET)}
    shown = {*spec.tunables, "MYDIST_CONTROLLER", *harmless}
    return {
        name: f"    {name}={value if name in shown else REDACTED}"
        for name, value in sorted(env.items())
    }
