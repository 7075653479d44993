"""mydistrun starts the children itself: those of this host directly, others through ssh."""

from __future__ import annotations

import asyncio
import os
import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from mydist.job.rendezvous_wire import KEY_BYTES
from mydist.launcher.check_build import has_program, program_path
from mydist.launcher.children import Children
from mydist.launcher.command import remote_command, resolve_command
from mydist.launcher.dry_run import rank_lines, server_lines, variable_lines
from mydist.launcher.endpoints import (
    address_seen_by,
    first_interface,
    free_port,
    listening_address,
    peer_address,
)
from mydist.launcher.environment import (
    Endpoints,
    environment_here,
    environment_there,
    identity_environment,
    requested_environment,
    server_environment,
)
from mydist.launcher.errors import LaunchError, UsageError
from mydist.launcher.hosts import Host, bracketed
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.placement import RankPlacement
from mydist.launcher.platforms.platform import Launch
from mydist.launcher.platforms.remote_host import RemoteHost, ssh_command
from mydist.launcher.process_group import ChildCommand, ProcessGroup
from mydist.launcher.rendezvous_server import RendezvousServer
from mydist.launcher.stop_sequence import AFTER_FAILURE, Steps

LOOPBACK = "127.0.0.1"


class DirectPlatform:
    """The running children on this host, and the agents of the other ones. See Platform."""

    after_timeout: ClassVar[Steps] = AFTER_FAILURE

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._spec = launch.spec
        self._key = secrets.token_bytes(KEY_BYTES)
        self._job_id = secrets.token_hex(8)
        self._server = RendezvousServer(self._job_id, self._key, self._spec.num_proc, self._log)
        self._group: ProcessGroup | None = None
        self._remotes: list[RemoteHost] = []
        self._argv: list[str] = []  # Of the ranks on this host.

    def _log(self, text: str) -> None:
        """Called from the server's thread."""
        self._launch.loop.call_soon_threadsafe(self._launch.tell, text)

    @staticmethod
    def serves(spec: JobSpec, ranks: Sequence[RankPlacement]) -> bool:
        """Always."""
        return True

    @staticmethod
    def describe(spec: JobSpec, environment: Mapping[str, str], children: Children) -> list[str]:
        """The hosts and their children."""
        lines: list[str] = []
        shared = variable_lines(spec, requested_environment(spec, environment))
        shared_there = variable_lines(spec, environment_there(spec, environment))
        ranks = children.by_host(children.of_ranks)
        for host, own in children.by_host(children.everyone).items():
            is_here = spec.is_local(host)
            way = "directly" if is_here else f"through: {shlex.join(ssh_command(host, spec.ssh))}"
            lines.append(f"host {host.name}: {way}")
            variables = shared if is_here else shared_there
            if servers := [child for child in own if child in children.of_servers]:
                program = _require_program() if is_here else program_path().name
                lines += server_lines(program, variables, children, servers)
            if host in ranks:
                command = resolve_command(spec, environment) if is_here else remote_command(spec)
                lines += rank_lines(shlex.join(command), variables, children, ranks[host])
        return lines

    async def connect(self, children: Children) -> None:
        self._children = children
        hosts = list(children.by_host(children.everyone))
        ranks = children.by_host(children.of_ranks)
        servers = children.by_host(children.of_servers)
        here = [host for host in hosts if self._spec.is_local(host)]
        if any(host in ranks for host in here):
            self._argv = resolve_command(self._spec, self._launch.environment)
        self._programs = {host: _require_program() for host in here if host in servers}
        hellos = await self._reach([host for host in hosts if host not in here])
        for host, hello in hellos.items():
            if host in servers:
                self._programs[host] = _require_program_there(host, hello)
        self._binds = self._bind_addresses(hosts, hellos)
        of_ranks = {host: hello for host, hello in hellos.items() if host in ranks}
        self._endpoints = self._open_meeting(list(ranks), of_ranks)
        if here:
            self._group = ProcessGroup(self._launch.loop, self._launch.events, self._key)

    def start(self, part: range, variables: Mapping[str, str]) -> None:
        by_host = self._children.by_host(part)
        environment = self._launch.environment
        shared = {**environment_there(self._spec, environment), **variables}
        for remote in self._remotes:
            if own := by_host.pop(remote.host, []):
                command = remote_command(self._spec)
                remote.start([self._command(child, command, shared) for child in own], self._key)
        if by_host:
            assert self._group is not None
            shared = {**environment_here(self._spec, environment), **variables}
            local = [child for own in by_host.values() for child in own]
            self._group.start([self._command(child, self._argv, shared) for child in local])

    def _command(self, child: int, argv: Sequence[str], shared: Mapping[str, str]) -> ChildCommand:
        """What to run for a child; `argv` is the ranks'."""
        host = self._children.host(child)
        is_server = child in self._children.of_servers
        if is_server:
            server = self._children.server(child)
            argv = [self._programs[host]]
            own = server_environment(server, self._binds[host], self._job_id)
        else:
            own = identity_environment(self._children.ranks[child], self._endpoints[host])
        return ChildCommand(
            child=child,
            name=self._children.name(child),
            argv=argv,
            env={**shared, **own},
            cwd=os.getcwd(),
            tells_address=is_server,
        )

    async def _reach(self, hosts: Sequence[Host]) -> dict[Host, dict[str, Any]]:
        """Starts all agents at once; returns what each said first, or raises with every cause."""
        reached = [
            RemoteHost(self._launch.loop, host, self._spec.ssh, self._launch.events)
            for host in hosts
        ]
        self._remotes += reached
        if not reached:
            return {}
        timeout = self._spec.ssh.start_timeout
        await asyncio.wait([remote.hello for remote in reached], timeout=timeout)
        causes = []
        for remote in reached:
            if not remote.hello.done():
                words = remote.last_words()
                shown = f"; its last output: {words}" if words else ""
                causes.append(f"host {remote.host.name!r}: no answer within {timeout:g} s{shown}")
            elif (error := remote.hello.exception()) is not None:
                causes.append(str(error))
        if causes:
            raise LaunchError("\nmydistrun: ".join(causes))
        return {remote.host: remote.hello.result() for remote in reached}

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
            return dict.fromkeys(hosts, LOOPBACK)
        if self._spec.network_interfaces:
            return dict.fromkeys(hosts, first_interface(self._spec.network_interfaces)[1])
        chosen = {
            host: address_seen_by(host.address, str(hello.get("ssh_connection", "")))
            for host, hello in hellos.items()
        }
        first = next(iter(chosen.values()))
        return {host: chosen.get(host, first) for host in hosts}

    def _bind_addresses(
        self, hosts: Sequence[Host], hellos: Mapping[Host, dict[str, Any]]
    ) -> dict[Host, str]:
        """The address that the servers of each host listen on."""
        if len(hosts) == 1 or not hellos:
            return dict.fromkeys(hosts, LOOPBACK)
        found = self._choose_addresses(hosts, hellos)
        names = self._spec.network_interfaces
        for host in self._programs.keys() & hellos.keys():
            found[host] = listening_address(host.address, hellos[host], names)
        return found

    def tell_end(self, child: int, status: int) -> None:
        for source in self._sources():
            source.tell_end(child, status)

    def _sources(self) -> list[ProcessGroup | RemoteHost]:
        return [*([self._group] if self._group is not None else []), *self._remotes]

    def send_signal(self, signum: int, children: range) -> None:
        for source in self._sources():
            source.send_signal(signum, children)

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


def _require_program() -> str:
    """The program of a server on this host. Raises UsageError."""
    if not has_program():
        raise UsageError(_missing_program(str(program_path())))
    return str(program_path())


def _require_program_there(host: Host, hello: Mapping[str, Any]) -> str:
    """The same on another host, as its agent says."""
    path = str(hello.get("server_program", program_path().name))
    if not hello.get("has_server_program"):
        raise UsageError(f"host {host.name!r}: {_missing_program(path)}")
    return path


def _missing_program(path: str) -> str:
    return (
        f"--servers: this mydist was built without the parameter server: there is no program "
        f"{path!r}. In a checkout run make build, where Asio and libcrypto are installed"
    )
