"""All ranks run on this host, as children of the launcher."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence

from mydist.launcher.command import resolve_command
from mydist.launcher.dry_run import host_lines, variable_lines
from mydist.launcher.environment import (
    Endpoints,
    identity_environment,
    inherited_environment,
    requested_environment,
)
from mydist.launcher.hosts import Host
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.meeting_point import MeetingPoint
from mydist.launcher.placement import RankPlacement, ranks_by_host
from mydist.launcher.platforms.platform import Launch
from mydist.launcher.process_group import ProcessGroup, RankCommand

_LOOPBACK = "127.0.0.1"


def command_here(spec: JobSpec, environment: Mapping[str, str]) -> list[str]:
    """The argument vector of each rank of this host. Raises LaunchError as resolve_command()."""
    return resolve_command(spec, environment.get("PATH", os.defpath))


def commands_here(
    launch: Launch,
    argv: Sequence[str],
    ranks: Sequence[RankPlacement],
    endpoints: Mapping[Host, Endpoints],
) -> list[RankCommand]:
    """What to run for the ranks of this host."""
    shared = {
        **inherited_environment(launch.environment),
        **requested_environment(launch.spec, launch.environment),
    }
    cwd = os.getcwd()
    return [
        RankCommand(
            rank.rank, argv, {**shared, **identity_environment(rank, endpoints[rank.host])}, cwd
        )
        for rank in ranks
    ]


def lines_here(
    spec: JobSpec, environment: Mapping[str, str], host: Host, ranks: Sequence[RankPlacement]
) -> list[str]:
    """The lines of the dry run for a host whose ranks the launcher starts itself."""
    shared = variable_lines(spec, requested_environment(spec, environment))
    command = shlex.join(command_here(spec, environment))
    return host_lines(host, "directly", command, shared, ranks)


class LocalPlatform:
    """The running ranks of this host. See Platform."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._meeting = MeetingPoint(launch)
        self._group: ProcessGroup | None = None

    @staticmethod
    def serves(spec: JobSpec, ranks: Sequence[RankPlacement]) -> bool:
        """Whether no rank is on another host."""
        return all(spec.is_local(rank.host) for rank in ranks)

    @staticmethod
    def describe(
        spec: JobSpec, environment: Mapping[str, str], ranks: Sequence[RankPlacement]
    ) -> list[str]:
        """The host and its ranks."""
        lines: list[str] = []
        for host, there in ranks_by_host(ranks).items():
            lines += lines_here(spec, environment, host, there)
        return lines

    async def start(self, ranks: Sequence[RankPlacement]) -> None:
        """See Platform."""
        argv = command_here(self._launch.spec, self._launch.environment)
        reached = dict.fromkeys((rank.host for rank in ranks), _LOOPBACK)
        endpoints = self._meeting.open(reached, _LOOPBACK)
        self._group = ProcessGroup(self._launch.loop, self._launch.events, self._meeting.key)
        self._group.start(commands_here(self._launch, argv, ranks, endpoints))

    def send_signal(self, signum: int) -> None:
        """See Platform."""
        if self._group is not None:
            self._group.send_signal(signum)

    def pause_output(self) -> None:
        """See Platform."""
        if self._group is not None:
            self._group.pause_output()

    def resume_output(self) -> None:
        """See Platform."""
        if self._group is not None:
            self._group.resume_output()

    def out_of_memory(self) -> bool:
        """See Platform."""
        return self._group is not None and self._group.out_of_memory()

    async def close(self) -> None:
        """See Platform."""
        if self._group is not None:
            self._group.close()
        self._meeting.close()
