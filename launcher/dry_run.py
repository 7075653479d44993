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
    """How a host is reached, and what its `ranks` run with which variables.

    What is the same for all of them stands once. `shared` is of variable_lines(), made once:
    thousands of hosts have the same variables.
    """
    identities = [_identity(rank) for rank in ranks]
    same = {
        name: f"    {name}={value}"
        for name, value in identities[0].items()
        if all(identity[name] == value for identity in identities)
    }
    merged = {**shared, **same}
    first, last = ranks[0].rank, ranks[-1].rank
    label = f"rank {first}" if first == last else f"ranks {first} to {last}"
    lines = [f"host {host.name}: {way}", f"  {label}: {command}"]
    lines += [merged[name] for name in sorted(merged)]
    if first == last:
        return lines
    for rank, identity in zip(ranks, identities, strict=True):
        own = [f"{name}={value}" for name, value in sorted(identity.items()) if name not in same]
        lines.append(f"  rank {rank.rank}: {' '.join(own)}")
    return lines


def _identity(rank: RankPlacement) -> dict[str, str]:
    found = identity_environment(rank, Endpoints(AT_START, 0, AT_START, AT_START))
    return found | dict.fromkeys(("MASTER_PORT", "MYDIST_JOB_KEY_FD", rank_ends.VARIABLE), AT_START)


def variable_lines(spec: JobSpec, env: Mapping[str, str]) -> dict[str, str]:
    """The line of each variable. Shown are the values of flags and harmless ones."""
    # Everything else may be a secret.
    harmless = {name for name in env if matches(name, HARMLESS) and not matches(name, SECRET)}
    shown = {*spec.tunables, "MYDIST_CONTROLLER", *harmless}
    return {
        name: f"    {name}={value if name in shown else REDACTED}"
        for name, value in sorted(env.items())
    }
