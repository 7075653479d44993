"""One job from start to exit code: starts the ranks, passes their output on, ends with the first.

Lives on one asyncio loop; local ranks, remote hosts and mpirun report to it through RankEvents.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Mapping
from typing import Any

from mydist.job.rendezvous_wire import KEY_BYTES
from mydist.launcher import report, stop_sequence
from mydist.launcher.bounded_writer import BoundedWriter
from mydist.launcher.command import remote_command, resolve_command
from mydist.launcher.endpoints import address_seen_by, first_interface, free_port, peer_address
from mydist.launcher.environment import (
    Endpoints,
    forwarded_environment,
    identity_environment,
    inherited_environment,
    requested_environment,
)
from mydist.launcher.errors import EXIT_START, LaunchError
from mydist.launcher.hosts import Host, bracketed
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.output import OutputFiles, RankOutput
from mydist.launcher.placement import RankPlacement, place_ranks
from mydist.launcher.platforms.mpi import MpiRun
from mydist.launcher.platforms.ssh import RemoteHost
from mydist.launcher.process_group import ProcessGroup, RankCommand
from mydist.launcher.rendezvous_server import RendezvousServer

RESUME_CHECK_SECONDS = 0.02
_EXIT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def run_job(spec: JobSpec, environment: Mapping[str, str] = os.environ) -> int:
    """Runs the job to its end, blocking; returns the exit code. Raises LaunchError before a rank
    runs. Installs signal handlers for its duration when called on the main thread."""
    output = RankOutput(BoundedWriter(1), BoundedWriter(2), spec.output.timestamps)
    try:
        if spec.output.directory is not None:
            output.attach_files(OutputFiles(spec.output.directory, spec.num_proc))
        return asyncio.run(Job(spec, environment, output).run())
    finally:
        output.close()


class Job:
    """The running job."""

    def __init__(self, spec: JobSpec, environment: Mapping[str, str], output: RankOutput) -> None:
        self._spec = spec
        self._environment = environment
        self._output = output
        self._placements = place_ranks(spec.hosts, spec.num_proc)
        self._job_id = secrets.token_hex(8)
        self._key = secrets.token_bytes(KEY_BYTES)
        self._local: ProcessGroup | None = None
        self._remotes: list[RemoteHost] = []
        self._mpi: MpiRun | None = None
        self._server: RendezvousServer | None = None
        self._pids: dict[int, int] = {}
        self._ends: dict[int, report.RankExit] = {}
        self._signal: signal.Signals | None = None
        self._resume_planned = False
        self._started_at = time.monotonic()

    async def run(self) -> int:
        """Starts, waits, cleans up, reports. Raises LaunchError when it cannot start."""
        self._loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        self._stop = stop_sequence.StopSequence(self._loop, self._send_signal)
        self._run_task = asyncio.current_task()
        self._connecting = True
        with self._signals():
            try:
                await self._start()
                self._connecting = False
                await self._all_ended.wait()
            except asyncio.CancelledError:
                if self._signal is None:
                    raise
            finally:
                self._connecting = False
                await self._close()
        return self._conclude()

    # RankEvents and HostEvents

    def on_started(self, rank: int, pid: int) -> None:
        """A rank runs."""
        self._pids[rank] = pid
        self._tell(f"rank {rank} on {self._placements[rank].host.name}: pid {pid}")

    def on_output(self, rank: int, stream: int, data: bytes) -> None:
        """A rank printed; when the terminal is slower, the ranks are read more slowly."""
        if not 0 <= rank < self._spec.num_proc:
            return
        self._output.write(rank, stream, data)
        if self._output.wants_pause() and not self._resume_planned:
            self._resume_planned = True
            for source in self._sources():
                source.pause_output()
            self._loop.call_later(RESUME_CHECK_SECONDS, self._try_resume)

    def on_exited(self, rank: int, status: int) -> None:
        """A rank ended; the first failure stops the others."""
        memory = status == -signal.SIGKILL and bool(self._local and self._local.out_of_memory())
        self._end(rank, status, out_of_memory=memory)

    def on_host_lost(self, host: Host, cause: str, exit_code: int) -> None:
        """A remote host is gone with all its ranks."""
        for placement in self._placements:
            if placement.host == host and placement.rank not in self._ends:
                self._end(placement.rank, exit_code, lost=cause)

    def on_note(self, text: str) -> None:
        """Something to tell that no rank printed."""
        self._output.note(text)

    # start

    async def _start(self) -> None:
        if self._spec.controller == "mpi":
            self._mpi = MpiRun(self._loop, self._spec, self._environment, self)
            self._mpi.start()
            return
        local = [p for p in self._placements if self._spec.is_local(p.host)]
        if local:
            path = self._environment.get("PATH", os.defpath)
            argv = resolve_command(self._spec, path)
        hellos = await self._connect_hosts()
        reached = self._choose_addresses(hellos)
        endpoints = self._start_rendezvous(reached, hellos)
        cwd = os.getcwd()
        for remote in self._remotes:
            near = endpoints[remote.host]
            remote_argv = remote_command(self._spec)
            remote.start(
                [
                    RankCommand(p.rank, remote_argv, self._remote_environment(p, near), cwd)
                    for p in self._placements
                    if p.host == remote.host
                ],
                self._key,
            )
        if local:
            self._local = ProcessGroup(self._loop, self, self._key)
            self._local.start(
                [
                    RankCommand(p.rank, argv, self._local_environment(p, endpoints[p.host]), cwd)
                    for p in local
                ]
            )

    async def _connect_hosts(self) -> dict[Host, dict[str, Any]]:
        """Starts all agents at once; returns what each said first, or raises with every cause."""
        hosts = dict.fromkeys(p.host for p in self._placements)
        for host in hosts:
            if not self._spec.is_local(host):
                remote = RemoteHost(self._loop, host, self._spec.ssh, self)
                self._remotes.append(remote)
                remote.connect()
        if not self._remotes:
            return {}
        timeout = self._spec.ssh.start_timeout
        await asyncio.wait([remote.hello for remote in self._remotes], timeout=timeout)
        causes = []
        for remote in self._remotes:
            if not remote.hello.done():
                words = remote.last_words()
                shown = f"; the last it said: {words}" if words else ""
                causes.append(f"host {remote.host.name!r}: no answer within {timeout:g} s{shown}")
            elif (error := remote.hello.exception()) is not None:
                causes.append(str(error))
        if causes:
            raise LaunchError("\nmydistrun: ".join(causes))
        return {remote.host: remote.hello.result() for remote in self._remotes}

    def _choose_addresses(self, hellos: dict[Host, dict[str, Any]]) -> dict[Host, str]:
        """For each host the address of this machine that its ranks connect to."""
        hosts = list(dict.fromkeys(p.host for p in self._placements))
        if not hellos:
            return dict.fromkeys(hosts, "127.0.0.1")
        if self._spec.network_interfaces:
            return dict.fromkeys(hosts, first_interface(self._spec.network_interfaces)[1])
        chosen = {
            host: address_seen_by(host.address, str(hello.get("ssh_connection", "")))
            for host, hello in hellos.items()
        }
        first = next(iter(chosen.values()))
        return {host: chosen.get(host, first) for host in hosts}

    def _start_rendezvous(
        self, reached: dict[Host, str], hellos: dict[Host, dict[str, Any]]
    ) -> dict[Host, Endpoints]:
        def log(text: str) -> None:  # from the server's thread
            self._loop.call_soon_threadsafe(self._tell, text)

        self._server = RendezvousServer(self._job_id, self._key, self._spec.num_proc, log)
        ports = self._server.start(list(dict.fromkeys(reached.values())))
        for address, port in ports.items():
            self._tell(f"rendezvous listens on {bracketed(address)}:{port}")
        master = self._placements[0].host
        if master in hellos:
            ssh_connection = str(hellos[master].get("ssh_connection", ""))
            address = peer_address(master.address, ssh_connection)
            port = int(hellos[master].get("free_port", 0))
        else:
            address = reached[master]
            port = free_port(address)
        return {
            host: Endpoints(address, port, f"{bracketed(near)}:{ports[near]}", self._job_id)
            for host, near in reached.items()
        }

    def _local_environment(self, placement: RankPlacement, endpoints: Endpoints) -> dict[str, str]:
        return {
            **inherited_environment(self._environment),
            **requested_environment(self._spec, self._environment),
            **identity_environment(placement, endpoints),
        }

    def _remote_environment(self, placement: RankPlacement, endpoints: Endpoints) -> dict[str, str]:
        return {
            **forwarded_environment(self._environment),
            **requested_environment(self._spec, self._environment),
            **identity_environment(placement, endpoints),
        }

    # end

    def _sources(self) -> list[ProcessGroup | RemoteHost | MpiRun]:
        single = [source for source in (self._local, self._mpi) if source is not None]
        return [*single, *self._remotes]

    def _end(self, rank: int, status: int, lost: str = "", out_of_memory: bool = False) -> None:
        if rank in self._ends or not 0 <= rank < self._spec.num_proc:
            return
        self._output.finish(rank)
        end = report.RankExit(
            rank=rank,
            host=self._placements[rank].host.name,
            pid=self._pids.get(rank, 0),
            status=status,
            at=time.monotonic() - self._started_at,
            stopped=self._stop.started,
            improper=self._mpi is not None and rank in self._mpi.improper,
            lost=lost,
            out_of_memory=out_of_memory,
        )
        self._ends[rank] = end
        if len(self._ends) == self._spec.num_proc:
            self._stop.cancel()
            self._all_ended.set()
        elif end.failed and not self._stop.running:
            self._stop.begin(stop_sequence.AFTER_FAILURE)

    def _send_signal(self, signum: signal.Signals) -> None:
        for source in self._sources():
            source.send_signal(signum)

    def _try_resume(self) -> None:
        if self._output.wants_pause():
            self._loop.call_later(RESUME_CHECK_SECONDS, self._try_resume)
            return
        self._resume_planned = False
        for source in self._sources():
            source.resume_output()

    @contextlib.contextmanager
    def _signals(self) -> Any:
        """Handles Ctrl-C, SIGTERM and SIGHUP, unless the caller's parent had them ignored."""
        installed = []
        for signum in _EXIT_SIGNALS:
            with contextlib.suppress(ValueError, RuntimeError):  # not on the main thread
                if signal.getsignal(signum) != signal.SIG_IGN:
                    self._loop.add_signal_handler(signum, self._on_signal, signum)
                    installed.append(signum)
        try:
            yield
        finally:
            for signum in installed:
                self._loop.remove_signal_handler(signum)

    def _on_signal(self, signum: signal.Signals) -> None:
        again = self._signal is not None
        self._signal = self._signal or signum
        if self._connecting:
            assert self._run_task is not None
            self._run_task.cancel()
        elif again:
            self._output.note("mydistrun: killing all ranks")
            self._stop.begin(stop_sequence.AT_ONCE)
        else:
            self._output.note(f"mydistrun: got {signum.name}, stopping the ranks (again: kill)")
            interrupted = signum == signal.SIGINT
            self._stop.begin(
                stop_sequence.AFTER_SIGINT
                if interrupted
                else stop_sequence.after_sigterm(self._spec.stop_timeout)
            )

    async def _close(self) -> None:
        self._stop.cancel()
        if self._local is not None:
            self._local.close()
        if self._mpi is not None:
            self._mpi.close()
        await asyncio.gather(*(remote.close() for remote in self._remotes))
        if self._server is not None:
            self._server.stop()

    def _conclude(self) -> int:
        if self._signal is not None:
            return 128 + self._signal
        ends = list(self._ends.values())
        tails = {end.rank: self._output.tail(end.rank) for end in ends}
        cause = report.find_cause(ends, tails)
        if cause is None and self._mpi is not None and self._mpi.unnamed_failure:
            code = self._mpi.unnamed_failure
            self._output.note(f"mydistrun: mpirun ended with {code} and named no rank; see above")
            return code
        if cause is None:
            return 0
        self._output.note(report.format_failure(cause, ends, self._spec.num_proc, tails))
        return cause.exit_code or EXIT_START

    def _tell(self, text: str) -> None:
        if self._spec.verbose:
            self._output.note(f"mydistrun: {text}")
