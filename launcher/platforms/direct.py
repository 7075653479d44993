"""mydistrun starts the ranks itself: those of this host directly, those of others through ssh."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mydist.job.rendezvous_wire import KEY_BYTES
from mydist.launcher.command import remote_command, resolve_command
from mydist.launcher.dry_run import host_lines, variable_lines
from mydist.launcher.endpoints import address_seen_by, first_interface, free_port, peer_address
from mydist.launcher.environment import (
    Endpoints,
    environment_here,
    environment_there,
    identity_environment,
    requested_environment,
)
from mydist.launcher.errors import LaunchError
from mydist.launcher.hosts import Host, bracketed
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.placement import RankPlacement, ranks_by_host
from mydist.launcher.platforms.platform import Launch
from mydist.launcher.platforms.remote_host import RemoteHost, ssh_command
from mydist.launcher.process_group import ChildCommand, ProcessGroup
from mydist.launcher.rendezvous_server import RendezvousServer
from mydist.launcher.stop_sequence import AFTER_FAILURE, Steps

_LOOPBACK = "127.0.0.1"


def _commands(
    argv: Sequence[str],
    shared: Mapping[str, str],
    ranks: Sequence[RankPlacement],
    meeting: Endpoints,
) -> list[ChildCommand]:
    """What to run for the ranks of one host."""
    cwd = os.getcwd()
    return [
        ChildCommand(rank.rank, argv, {**shared, **identity_environment(rank, meeting)}, cwd)
        for rank in ranks
    ]


class DirectPlatform:
    """The running ranks of this host, and the agents of the other ones. See Platform."""

    after_timeout: ClassVar[Steps] = AFTER_FAILURE

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._spec = launch.spec
        self._key = secrets.token_bytes(KEY_BYTES)
        self._job_id = secrets.token_hex(8)
        self._server = RendezvousServer(self._job_id, self._key, self._spec.num_proc, self._log)
        self._group: ProcessGroup | None = None
        self._remotes: list[RemoteHost] = []

    def _log(self, text: str) -> None:
        """Called from the server's thread."""
        self._launch.loop.call_soon_threadsafe(self._launch.tell, text)

    @staticmethod
    def serves(spec: JobSpec, ranks: Sequence[RankPlacement]) -> bool:
        """Always."""
        return True

    @staticmethod
    def describe(
        spec: JobSpec, environment: Mapping[str, str], ranks: Sequence[RankPlacement]
    ) -> list[str]:
        """The hosts and their ranks."""
        lines: list[str] = []
        shared = variable_lines(spec, requested_environment(spec, environment))
        shared_there = variable_lines(spec, environment_there(spec, environment))
        for host, own in ranks_by_host(ranks).items():
            if spec.is_local(host):
                command = shlex.join(resolve_command(spec, environment))
                lines += host_lines(host, "directly", command, shared, own)
            else:
                way = f"through: {shlex.join(ssh_command(host, spec.ssh))}"
                lines += host_lines(host, way, shlex.join(remote_command(spec)), shared_there, own)
        return lines

    async def start(self, ranks: Sequence[RankPlacement]) -> None:
        by_host = ranks_by_host(ranks)
        here = [host for host in by_host if self._spec.is_local(host)]
        environment = self._launch.environment
        argv = resolve_command(self._spec, environment) if here else []
        hellos = await self._connect([host for host in by_host if host not in here])
        endpoints = self._open_meeting(list(by_host), hellos)
        shared = environment_there(self._spec, environment)
        command = remote_command(self._spec)
        for remote in self._remotes:
            own, meeting = by_host[remote.host], endpoints[remote.host]
            remote.start(_commands(command, shared, own, meeting), self._key)
        if not here:
            return
        shared = environment_here(self._spec, environment)
        commands = [_commands(argv, shared, by_host[host], endpoints[host]) for host in here]
        self._group = ProcessGroup(self._launch.loop, self._launch.events, self._key)
        self._group.start([command for of_host in commands for command in of_host])

    async def _connect(self, hosts: Sequence[Host]) -> dict[Host, dict[str, Any]]:
        """Starts all agents at once; returns what each said first, or raises with every cause."""
        for host in hosts:
            remote = RemoteHost(self._launch.loop, host, self._spec.ssh, self._launch.events)
            self._remotes.append(remote)
        if not self._remotes:
            return {}
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
        """Starts the rendezvous; returns what the ranks of each host need to know."""
        reached = self._choose_addresses(hosts, hellos)
        ports = self._server.start(list(dict.fromkeys(reached.values())))
        for address, port in ports.items():
            self._launch.tell(f"rendezvous listens on {bracketed(address)}:{port}")
        master = hosts[0]
        if (hello := hellos.get(master)) is not None:
            address = peer_address(master.address, str(hello.get("ssh_connection", "")))
            port = int(hello.get("free_port", 0))
        else:
            address = reached[master]
            port = free_port(address)
        return {
            host: Endpoints(address, port, f"{bracketed(near)}:{ports[near]}", self._job_id)
            for host, near in reached.items()
        }

    def _choose_addresses(
        self, hosts: Sequence[Host], hellos: Mapping[Host, dict[str, Any]]
    ) -> dict[Host, str]:
        """For each host the address of this machine that its ranks connect to."""
        if not hellos:
            return dict.fromkeys(hosts, _LOOPBACK)
        if self._spec.network_interfaces:
            return dict.fromkeys(hosts, first_interface(self._spec.network_interfaces)[1])
        chosen = {
            host: address_seen_by(host.address, str(hello.get("ssh_connection", "")))
            for host, hello in hellos.items()
        }
        first = next(iter(chosen.values()))
        return {host: chosen.get(host, first) for host in hosts}

    def tell_end(self, rank: int, status: int) -> None:
        for source in self._sources():
            source.tell_end(rank, status)

    def _sources(self) -> list[ProcessGroup | RemoteHost]:
        return [*([self._group] if self._group is not None else []), *self._remotes]

    def send_signal(self, signum: int) -> None:
        for source in self._sources():
            source.send_signal(signum)

    def pause_output(self, paused: bool) -> None:
        for source in self._sources():
            source.pause_output(paused)

    def out_of_memory(self) -> bool:
        return self._group is not None and self._group.out_of_memory()

    async def close(self) -> None:
        if self._group is not None:
            self._group.close()
        await asyncio.gather(*(remote.close() for remote in self._remotes))
        self._server.stop()
