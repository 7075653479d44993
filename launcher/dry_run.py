"""Lines of `mydistrun --dry-run`: children and variables, with every foreign value hidden."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mydist.launcher import rank_ends, server_addresses
from mydist.launcher.children import Children
from mydist.launcher.environment import (
    SECRET,
    Endpoints,
    identity_environment,
    matches,
    server_environment,
)
from mydist.launcher.job_spec import JobSpec

AT_START = "<chosen at start>"
REDACTED = "<redacted>"
# Every child has them.
_GIVEN = ("MYDIST_JOB_KEY_FD", rank_ends.VARIABLE)
# Shown wherever they were set, unless the name looks like a secret.
HARMLESS = ("PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "LD_LIBRARY_PATH", "OMP_*", "NCCL_*")


def rank_lines(
    command: str, shared: Mapping[str, str], children: Children, ranks: Sequence[int]
) -> list[str]:
    """What the ranks of a host run with which variables. `shared` is of variable_lines(), made
    once: thousands of hosts have the same variables."""
    endpoints = Endpoints(AT_START, 0, AT_START, AT_START)
    chosen = ["MASTER_PORT", *_GIVEN]
    if children.servers:
        chosen.append(server_addresses.VARIABLE)
    found = [
        {**identity_environment(children.ranks[rank], endpoints), **dict.fromkeys(chosen, AT_START)}
        for rank in ranks
    ]
    return _child_lines("rank", command, shared, dict(zip(ranks, found, strict=True)))


def server_lines(
    program: str, shared: Mapping[str, str], children: Children, servers: Sequence[int]
) -> list[str]:
    """The same of the servers of a host."""
    chosen = dict.fromkeys((*_GIVEN, server_addresses.FD_VARIABLE), AT_START)
    found = {}
    for child in servers:
        server = children.server(child)
        found[server.number] = {**server_environment(server, AT_START, AT_START), **chosen}
    return _child_lines("server", program, shared, found)


def _child_lines(
    kind: str, command: str, shared: Mapping[str, str], identities: Mapping[int, dict[str, str]]
) -> list[str]:
    """Number → variables. What is the same for all of them stands once."""
    same = {
        name: f"    {name}={value}"
        for name, value in next(iter(identities.values())).items()
        if all(identity[name] == value for identity in identities.values())
    }
    merged = {**shared, **same}
    lines = [f"  {_label(kind, list(identities))}: {command}"]
    lines += [merged[name] for name in sorted(merged)]
    if len(identities) == 1:
        return lines
    for number, identity in identities.items():
        own = [f"{name}={value}" for name, value in sorted(identity.items()) if name not in same]
        lines.append(f"  {kind} {number}: {' '.join(own)}")
    return lines


def _label(kind: str, numbers: Sequence[int]) -> str:
    """`rank 3`, `ranks 0 to 3` or `servers 0, 2`."""
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"{kind} {first}"
    is_gapless = last - first + 1 == len(numbers)
    return f"{kind}s {f'{first} to {last}' if is_gapless else ', '.join(map(str, numbers))}"


def variable_lines(spec: JobSpec, env: Mapping[str, str]) -> dict[str, str]:
    """The line of each variable. Shown are the values of flags and harmless ones."""
    # Everything else may be a secret.
    harmless = {name for name in env if matches(name, HARMLESS) and not matches(name, SECRET)}
    shown = {*spec.tunables, "MYDIST_CONTROLLER", *harmless}
    return {
        name: f"    {name}={value if name in shown else REDACTED}"
        for name, value in sorted(env.items())
    }
