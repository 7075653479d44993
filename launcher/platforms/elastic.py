"""Starts the workers of an elastic job one by one, on hosts that come and go."""

from __future__ import annotations

import asyncio
import os
import shlex
from collections.abc import Mapping
from typing import Any

from mydist.launcher.children import Children
from mydist.launcher.command import remote_command, resolve_command
from mydist.launcher.dry_run import variable_lines
from mydist.launcher.elastic.workers import Workers
from mydist.launcher.endpoints import address_seen_by, first_interface
from mydist.launcher.environment import (
    Endpoints,
    environment_here,
    environment_there,
    requested_environment,
    worker_environment,
)
from mydist.launcher.hosts import MAX_SLOTS, Host, bracketed, format_entry
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.platforms.direct import LOOPBACK, DirectPlatform
from mydist.launcher.platforms.platform import Launch
from mydist.launcher.platforms.remote_host import RemoteHost, ssh_command
from mydist.launcher.process_group import ChildCommand, ProcessGroup
from mydist.launcher.rendezvous_server import MemberEvents, RendezvousServer


def describe_elastic(spec: JobSpec, environment: Mapping[str, str]) -> list[str]:
    """The lines of the dry run of an elastic job. Raises LaunchError as the start itself does."""
    assert spec.elastic is not None
    options = spec.elastic
    lines = [f"elastic job: {options.min_np} to {options.max_np} ranks"]
    if options.discovery:
        lines.append(f"hosts: as printed by {shlex.join(options.discovery)}")
    for host in () if options.discovery else spec.hosts:
        way = "directly" if spec.is_local(host) else shlex.join(ssh_command(host, spec.ssh))
        lines.append(f"host {format_entry(host)}: {way}")
    variables = variable_lines(spec, requested_environment(spec, environment))
    lines.append(f"  each worker: {shlex.join(resolve_command(spec, environment))}")
    return lines + [variables[name] for name in sorted(variables)]


class ElasticPlatform(DirectPlatform):
    """As DirectPlatform, but workers are started by `start_worker`."""

    def __init__(self, launch: Launch, members: MemberEvents) -> None:
        super().__init__(launch)
        self._server = RendezvousServer(
            self._job_id, self._key, MAX_SLOTS, self._log, members=members
        )
        self._ports: dict[str, int] = {}
        self._reached: dict[str, asyncio.Task[RemoteHost]] = {}
        self._near: dict[str, str] = {}  # By host, the address of this machine it connects to.

    async def connect(self, children: Children) -> None:
        assert isinstance(children, Workers)
        self._children = self._workers = children
        self._argv = resolve_command(self._spec, self._launch.environment)
        self._listen(LOOPBACK)
        self._group = ProcessGroup(self._launch.loop, self._launch.events, self._key)

    async def start_worker(self, worker: int, host: Host) -> None:
        """Starts it. Raises LaunchError when its host cannot be reached."""
        if self._spec.is_local(host):
            assert self._group is not None
            shared = environment_here(self._spec, self._launch.environment)
            near = next(iter(self._ports))
            self._group.start_further(self._worker_command(worker, self._argv, shared, near))
            return
        remote = await self._remote(host)
        shared = environment_there(self._spec, self._launch.environment)
        near = self._near[host.name]
        command = self._worker_command(worker, remote_command(self._spec), shared, near)
        remote.start([command], self._key)

    def send(self, worker: int, message: dict[str, Any]) -> None:
        """Sends a worker a message."""
        self._server.send(worker, message)

    def end_rounds(self, epoch: int, why: str) -> None:
        """The ranks do not meet in this epoch."""
        self._server.end_rounds(f"init.{epoch}.", why)

    def _worker_command(
        self, worker: int, argv: list[str], shared: dict[str, str], near: str
    ) -> ChildCommand:
        host = self._children.host(worker)
        rendezvous = f"{bracketed(near)}:{self._ports[near]}"
        endpoints = Endpoints(near, 0, rendezvous, self._job_id)
        own = worker_environment(worker, host, self._workers.slot(worker), endpoints)
        return ChildCommand(
            child=worker,
            name=self._children.name(worker),
            argv=argv,
            env={**shared, **own},
            cwd=os.getcwd(),
        )

    async def _remote(self, host: Host) -> RemoteHost:
        """The agent of a host, which is started for its first worker. Raises LaunchError."""
        task = self._reached.get(host.name)
        if task is None:
            task = self._reached[host.name] = asyncio.ensure_future(self._reach_one(host))
        try:
            remote = await asyncio.shield(task)
        except BaseException:
            self._reached.pop(host.name, None)
            raise
        if remote.is_lost:  # The next try starts an agent anew.
            self._reached.pop(host.name, None)
        return remote

    async def _reach_one(self, host: Host) -> RemoteHost:
        (hello,) = (await self._reach([host])).values()
        remote = next(remote for remote in reversed(self._remotes) if remote.host == host)
        names = self._spec.network_interfaces
        if names:
            near = first_interface(names)[1]
        else:
            near = address_seen_by(host.address, str(hello.get("ssh_connection", "")))
        if near not in self._ports:
            self._listen(near)
        self._near[host.name] = near
        return remote

    def _listen(self, address: str) -> None:
        self._ports.update(self._server.start([address]))
        self._launch.tell(f"rendezvous listens on {bracketed(address)}:{self._ports[address]}")
