"""The flags of an elastic job, checked together. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mydist.launcher.errors import UsageError
from mydist.launcher.hosts import MAX_SLOTS, Host
from mydist.launcher.job_spec import ElasticOptions

# One of these makes a job elastic; the others say how.
_MAKERS = ("min-np", "max-np", "host-discovery-script")
_DETAILS = ("slots-per-host", "reset-limit", "elastic-timeout", "blacklist-cooldown-range")


def elastic_hosts(merged: Mapping[str, Any], hosts: tuple[Host, ...]) -> tuple[Host, ...]:
    """The hosts of the job. Without a list, this machine has a slot for each of --max-np."""
    max_np = merged.get("max-np")
    if max_np is None or "hosts" in merged or "hostfile" in merged:
        return hosts
    return tuple(Host(host.name, max(max_np, host.slots)) for host in hosts)


def elastic_options(
    merged: Mapping[str, Any], controller: str | None, hosts: tuple[Host, ...]
) -> ElasticOptions | None:
    """What the flags say; None for a job whose number of ranks is fixed. Raises UsageError."""
    makers = [flag for flag in _MAKERS if flag in merged]
    if not makers:
        if detail := next((flag for flag in _DETAILS if flag in merged), None):
            raise UsageError(
                f"--{detail} is for elastic jobs; give --min-np, --max-np or "
                "--host-discovery-script, too, or leave it out"
            )
        return None
    _refuse(merged, makers[0], controller)
    discovery = merged.get("host-discovery-script", ())
    slots = sum(host.slots for host in hosts)
    num_proc = merged.get("num-proc")
    least = merged.get("min-np") or num_proc or 1
    most = merged.get("max-np") or (MAX_SLOTS if discovery else num_proc or max(slots, least))
    if least > most:
        raise UsageError(f"--min-np {least} is above --max-np {most}, expected at most that")
    if not discovery and slots < least:
        raise UsageError(
            f"--min-np {least}: the hosts have only {slots} slot{'s' * (slots != 1)}; add slots or "
            "hosts, or use a smaller number"
        )
    return ElasticOptions(
        min_np=least,
        max_np=most,
        discovery=tuple(discovery),
        slots_per_host=merged.get("slots-per-host", ElasticOptions.slots_per_host),
        reset_limit=merged.get("reset-limit"),
        timeout=merged.get("elastic-timeout", ElasticOptions.timeout),
        cooldown=merged.get("blacklist-cooldown-range", ElasticOptions.cooldown),
    )


def _refuse(merged: Mapping[str, Any], flag: str, controller: str | None) -> None:
    """Raises UsageError for what an elastic job cannot have."""
    if controller == "mpi":
        raise UsageError(
            f"--{flag}: mpirun ends the job with the first rank it loses; leave --mpi out, or save "
            "with mydist.Checkpoint and start the job again"
        )
    if "servers" in merged or "server-hosts" in merged:
        raise UsageError(
            f"--{flag}: an elastic job has no servers yet; leave --servers and --server-hosts out"
        )
    if "host-discovery-script" in merged:
        if other := next((name for name in ("hosts", "hostfile") if name in merged), None):
            raise UsageError(
                f"--host-discovery-script and --{other} exclude each other; give one of them"
            )
    elif "slots-per-host" in merged:
        raise UsageError("--slots-per-host is for --host-discovery-script; leave it out")
