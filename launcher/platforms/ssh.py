"""Some ranks run on other hosts, through ssh; those of this host run as in the local platform."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from mydist.launcher.command import remote_command
from mydist.launcher.dry_run import host_lines, variable_lines
from mydist.launcher.endpoints import address_seen_by, first_interface, peer_address
from mydist.launcher.environment import (
    Endpoints,
    forwarded_environment,
    identity_environment,
    requested_environment,
)
from mydist.launcher.errors import LaunchError
from mydist.launcher.hosts import Host
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.meeting_point import MeetingPoint
from mydist.launcher.placement import RankPlacement, ranks_by_host
from mydist.launcher.platforms.local import command_here, commands_here, lines_here
from mydist.launcher.platforms.platform import Launch
from mydist.launcher.platforms.remote_host import RemoteHost, ssh_command
from mydist.launcher.process_group import ProcessGroup, RankCommand


def _environment_there(spec: JobSpec, environment: Mapping[str, str]) -> dict[str, str]:
    return {**forwarded_environment(environment), **requested_environment(spec, environment)}


class SshPlatform:
    """The agents of the other hosts, and the running ranks of this one. See Platform."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._spec = launch.spec
        self._meeting = MeetingPoint(launch)
        self._group: ProcessGroup | None = None
        self._remotes: list[RemoteHost] = []

    @staticmethod
    def serves(spec: JobSpec, ranks: Sequence[RankPlacement]) -> bool:
        """Whether some rank is on another host."""
        return not all(spec.is_local(rank.host) for rank in ranks)

    @staticmethod
    def describe(
        spec: JobSpec, environment: Mapping[str, str], ranks: Sequence[RankPlacement]
    ) -> list[str]:
        """The hosts and their ranks."""
        lines: list[str] = []
        shared = variable_lines(spec, _environment_there(spec, environment))
        command = shlex.join(remote_command(spec))
        for host, there in ranks_by_host(ranks).items():
            if spec.is_local(host):
                lines += lines_here(spec, environment, host, there)
                continue
            way = f"through: {shlex.join(ssh_command(host, spec.ssh))}"
            lines += host_lines(host, way, command, shared, there)
        return lines

    async def start(self, ranks: Sequence[RankPlacement]) -> None:
        """See Platform."""
        here = [rank for rank in ranks if self._spec.is_local(rank.host)]
        argv = command_here(self._spec, self._launch.environment) if here else []
        hosts = list(dict.fromkeys(rank.host for rank in ranks))
        hellos = await self._connect(hosts)
        endpoints = self._open_meeting(hosts, hellos)
        by_host = ranks_by_host(ranks)
        shared = _environment_there(self._spec, self._launch.environment)
        for remote in self._remotes:
            there, meeting = by_host[remote.host], endpoints[remote.host]
            remote.start(self._commands_there(there, shared, meeting), self._meeting.key)
        if here:
            self._group = ProcessGroup(self._launch.loop, self._launch.events, self._meeting.key)
            self._group.start(commands_here(self._launch, argv, here, endpoints))

    async def _connect(self, hosts: Sequence[Host]) -> dict[Host, dict[str, Any]]:
        """Starts all agents at once; returns what each said first, or raises with every cause."""
        for host in hosts:
            if not self._spec.is_local(host):
                remote = RemoteHost(self._launch.loop, host, self._spec.ssh, self._launch.events)
                self._remotes.append(remote)
                remote.connect()
        timeout = self._spec.ssh.start_timeout
        await asyncio.wait([remote.hello for remote in self._remotes], timeout=timeout)
        causes = []
        for remote in self._remotes:
            if not remote.hello.done():
                words = remote.last_words()
                shown = f"; its last output: {words}" if words else ""
                causes.append(f"host {remote.host.name!r}: no answer within {timeout:g} s{shown}")
            elif (error := remote.hello.exception()) is not None:
                causes.append(str(error))
        if causes:
            raise LaunchError("\nmydistrun: ".join(causes))
        return {remote.host: remote.hello.result() for remote in self._remotes}

    def _open_meeting(
        self, hosts: Sequence[Host], hellos: Mapping[Host, dict[str, Any]]
    ) -> dict[Host, Endpoints]:
        reached = self._choose_addresses(hosts, hellos)
        master = hosts[0]
        if master not in hellos:
            return self._meeting.open(reached, reached[master])
        hello = hellos[master]
        address = peer_address(master.address, str(hello.get("ssh_connection", "")))
        return self._meeting.open(reached, address, int(hello.get("free_port", 0)))

    def _choose_addresses(
        self, hosts: Sequence[Host], hellos: Mapping[Host, dict[str, Any]]
    ) -> dict[Host, str]:
        """For each host the address of this machine that its ranks connect to."""
        if self._spec.network_interfaces:
            return dict.fromkeys(hosts, first_interface(self._spec.network_interfaces)[1])
        chosen = {
            host: address_seen_by(host.address, str(hello.get("ssh_connection", "")))
            for host, hello in hellos.items()
        }
        first = next(iter(chosen.values()))
        return {host: chosen.get(host, first) for host in hosts}

    def _commands_there(
        self, ranks: Sequence[RankPlacement], shared: Mapping[str, str], meeting: Endpoints
    ) -> list[RankCommand]:
        argv = remote_command(self._spec)
        cwd = os.getcwd()
        return [
            RankCommand(rank.rank, argv, {**shared, **identity_environment(rank, meeting)}, cwd)
            for rank in ranks
        ]

    def _sources(self) -> list[ProcessGroup | RemoteHost]:
        return [*([self._group] if self._group is not None else []), *self._remotes]

    def send_signal(self, signum: int) -> None:
        """See Platform."""
        for source in self._sources():
            source.send_signal(signum)

    def pause_output(self) -> None:
        """See Platform."""
        for source in self._sources():
            source.pause_output()

    def resume_output(self) -> None:
        """See Platform."""
        for source in self._sources():
            source.resume_output()

    def out_of_memory(self) -> bool:
        """See Platform."""
        return self._group is not None and self._group.out_of_memory()

    async def close(self) -> None:
        """See Platform."""
        if self._group is not None:
            self._group.close()
        await asyncio.gather(*(remote.close() for remote in self._remotes))
        self._meeting.close()
