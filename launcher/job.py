"""One job from start to exit code: starts the ranks, passes their output on, ends with the first.

Servers start before the ranks and end after them; see decision 0028. Lives on one asyncio loop; a
platform starts the children and reports through JobEvents.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mydist.launcher import awaited_ranks, report, server_addresses, session, stop_sequence
from mydist.launcher.bounded_writer import BoundedWriter
from mydist.launcher.children import Children, children_of
from mydist.launcher.errors import LaunchError, shown
from mydist.launcher.failure_record import FailureRecord
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.output import JobOutput, OutputFiles
from mydist.launcher.placement import RankPlacement
from mydist.launcher.platforms.platform import Launch
from mydist.launcher.platforms.table import platform_for

RESUME_CHECK_SECONDS = 0.02
_EXIT_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGCONT, signal.SIGTSTP)


def run_job(spec: JobSpec, environment: Mapping[str, str] = os.environ) -> int:
    """Runs the job to its end, blocking; returns the exit code. Raises LaunchError before a rank
    runs. Installs signal handlers for its duration when called on the main thread."""
    return run_as(Job, spec, children_of(spec), environment)


def run_as(
    kind: type[Job], spec: JobSpec, children: Children, environment: Mapping[str, str]
) -> int:
    """Runs a job of this class with these children, as `run_job` does."""
    spec = replace(spec, failure_tag=secrets.token_hex(16))
    output = JobOutput(
        BoundedWriter(1),
        BoundedWriter(2),
        spec.output.timestamps,
        failure_tag=spec.failure_tag,
        mark=children.mark,
    )
    try:
        if spec.output.directory is not None:
            output.attach_files(OutputFiles(spec.output.directory, children))
        return asyncio.run(kind(spec, children, environment, output).run())
    finally:
        output.close()


class Job:
    """The running job."""

    def __init__(
        self,
        spec: JobSpec,
        children: Children,
        environment: Mapping[str, str],
        output: JobOutput,
    ) -> None:
        self._spec = spec
        self._children = children
        self._environment = environment
        self._output = output
        self._pids: dict[int, int] = {}
        self._ends: dict[int, report.ChildEnd] = {}
        self._ended_ranks = 0
        self._addresses: dict[int, server_addresses.ServerAddress] = {}
        self._address_error: LaunchError | None = None
        self._departing: set[int] = set()
        self._unnamed_failure: tuple[int, str] | None = None
        self._signal: signal.Signals | None = None
        self._resume_planned = False
        self._next_wait_line: asyncio.TimerHandle | None = None
        self._started_at = time.monotonic()

    async def run(self) -> int:
        """Starts, waits, cleans up, reports. Raises LaunchError when it cannot start."""
        self._loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        self._all_listen = asyncio.Event()
        self._launch = Launch(self._spec, self._environment, self._loop, self)
        self._platform = platform_for(self._spec, self._children.ranks)(self._launch)
        self._stop = self._stop_sequence(self._children.of_ranks)
        self._server_stop = self._stop_sequence(self._children.of_servers)
        self._run_task = asyncio.current_task()
        self._connecting = True
        with self._signals():
            try:
                await self._start()
                self._connecting = False
                await self._all_ended.wait()
            except asyncio.CancelledError:
                if self._signal is None and not self._ends:
                    raise
            finally:
                self._connecting = False
                self._stop.cancel()
                self._server_stop.cancel()
                self._plan_no_wait_line()
                await self._platform.close()
        return self._conclude()

    def _stop_sequence(self, children: range) -> stop_sequence.StopSequence:
        return stop_sequence.StopSequence(
            self._loop, lambda signum: self._platform.send_signal(signum, children)
        )

    async def _start(self) -> None:
        """The ranks start when all servers listen: their environment says where."""
        await self._platform.connect(self._children)
        variables = {}
        if self._children.servers:
            self._platform.start(self._children.of_servers, {})
            variables[server_addresses.VARIABLE] = await self._await_addresses()
        self._platform.start(self._children.of_ranks, variables)

    async def _await_addresses(self) -> str:
        """Raises LaunchError naming the servers that do not report in time."""
        timeout = self._spec.ssh.start_timeout
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._all_listen.wait()
        if self._address_error is not None:
            raise self._address_error
        silent = [c for c in self._children.of_servers if c not in self._addresses]
        if silent:
            named = ", ".join(map(self._full_name, silent[: report.MAX_OTHERS_LISTED]))
            more = len(silent) - report.MAX_OTHERS_LISTED
            raise LaunchError(
                f"{named}{f' and {more} more' if more > 0 else ''} did not report an address "
                f"within {timeout:g} s (--start-timeout)"
            )
        return server_addresses.join_addresses(self._addresses.values())

    def _full_name(self, child: int) -> str:
        """Name, host and pid."""
        pid = self._pids.get(child, 0)
        host = self._children.host(child).name
        return f"{self._children.name(child)} on host {host}{f' (pid {pid})' if pid else ''}"

    # JobEvents

    def on_started(self, child: int, pid: int) -> None:
        """A child runs."""
        if child not in self._children.everyone:
            return
        self._pids[child] = pid
        name, host = self._children.name(child), self._children.host(child).name
        self._launch.tell(f"{name} on {host}: pid {pid}")

    def on_address(self, child: int, line: bytes) -> None:
        """A server listens."""
        if child not in self._children.of_servers:
            return
        number = self._children.server(child).number
        try:
            address = server_addresses.parse_address(line, number)
        except ValueError as error:
            text = shown(line.decode("ascii", "backslashreplace"))
            self._address_error = LaunchError(
                f"{self._full_name(child)} reported {text}, expected {error}"
            )
            self._all_listen.set()
            return
        self._launch.tell(f"{self._children.name(child)} listens at {address.text}")
        self._addresses[child] = address
        if len(self._addresses) == len(self._children.servers):
            self._all_listen.set()

    def on_output(self, child: int, stream: int, data: bytes) -> None:
        """A child printed; when the terminal is slower, all are read more slowly."""
        if child not in self._children.everyone:
            return
        if self._output.write(child, stream, data):
            self._on_failure_told(child)
        if self._output.wants_pause() and not self._resume_planned:
            self._resume_planned = True
            self._platform.pause_output(True)
            self._loop.call_later(RESUME_CHECK_SECONDS, self._try_resume)

    def on_exited(self, child: int, status: int, *, is_first: bool = False, **facts: bool) -> None:
        """A child ended; the first failure stops the others."""
        facts["out_of_memory"] = status == -signal.SIGKILL and self._platform.out_of_memory()
        if child in self._children.of_servers:
            was_killed = self._server_stop.sent == signal.SIGKILL and status == -signal.SIGKILL
            facts |= {"early": not self._server_stop.started, "overdue": was_killed}
        else:
            facts["stopped"] = self._stop.started and not is_first
        if not self._stop.started or is_first:
            self._platform.tell_end(child, status)
        self._end(child, status, **facts)

    def on_host_lost(self, children: Sequence[int], cause: str, exit_code: int) -> None:
        """A remote host is gone with all its living children."""
        for child in children:
            self._end(child, exit_code, stopped=self._stop.started, lost=cause)

    def on_unnamed_failure(self, exit_code: int, text: str) -> None:
        """The job failed; the text stands for the report of a rank."""
        self._unnamed_failure = (exit_code, text)

    def failure(self, rank: int) -> FailureRecord | None:
        """What the rank has said of its own failure so far."""
        return self._output.failure(rank)

    def has_complained(self, rank: int) -> bool:
        """Whether the rank has printed an error or told of a failure so far."""
        return self._output.has_complained(rank)

    def on_note(self, text: str) -> None:
        """Something to tell that no rank printed."""
        self._output.note(text)

    def _end(self, child: int, status: int, **facts: Any) -> None:
        if child in self._ends or child not in self._children.everyone:
            return
        self._output.finish(child)
        end = report.ChildEnd(
            child=child,
            host=self._children.host(child).name,
            pid=self._pids.get(child, 0),
            status=status,
            at=time.monotonic() - self._started_at,
            name=self._children.name(child),
            **facts,
        )
        self._ends[child] = end
        self._ended_ranks += child in self._children.of_ranks
        self._plan_no_wait_line()
        if len(self._ends) == len(self._children):
            self._stop.cancel()
            self._server_stop.cancel()
            self._all_ended.set()
        elif self._ended_ranks == len(self._children.ranks):
            self._stop.cancel()
            if not self._server_stop.running:
                self._server_stop.begin(stop_sequence.AFTER_RANKS)
        elif self._connecting and child in self._children.of_servers:
            self._cancel_start()
        elif end.failed and (not self._stop.running or self._has_departed(child)):
            self._departing = self._departed_by(end)
            after = stop_sequence.AFTER_DEPARTURE, stop_sequence.AFTER_FAILURE
            self._stop.begin(after[0] if self._departing else after[1])
        else:
            self._plan_wait_line(awaited_ranks.FIRST_LINE_SECONDS, waited=0.0)

    def _has_departed(self, rank: int) -> bool:
        """Whether the others were given time for this rank to end, and have not been stopped."""
        return rank in self._departing and not self._stop.started

    def _failure_of(self, end: report.ChildEnd) -> FailureRecord | None:
        """What ended a rank. An exception that its program has caught did if its exit code says
        so."""
        failure = self._output.failure(end.child)
        has_failed = end.status > 0 and not (end.stopped or end.lost)
        return failure or (self._output.caught().get(end.child) if has_failed else None)

    def _departed_by(self, end: report.ChildEnd) -> set[int]:
        """The ranks that this one failed of, if they have said that they leave and still run."""
        failure = self._failure_of(end)
        if failure is None or not failure.says_others_departed:
            return set()
        return set(failure.ranks) - self._ends.keys()

    def _plan_wait_line(self, delay: float, waited: float) -> None:
        waited += delay
        self._next_wait_line = self._loop.call_later(delay, self._tell_wait, waited)

    def _plan_no_wait_line(self) -> None:
        if self._next_wait_line is not None:
            self._next_wait_line.cancel()
            self._next_wait_line = None

    def _tell_wait(self, waited: float) -> None:
        """Names the ranks that run on: no time limits how long. One that is stopped never ends."""
        if not self._stop.running:  # Else they end soon.
            living = [place for place in self._children.ranks if place.rank not in self._ends]
            awaited = [self._awaited(place) for place in living]
            self._output.note(awaited_ranks.wait_line(awaited, self._ended_ranks, waited))
        self._plan_wait_line(waited, waited)

    def _awaited(self, place: RankPlacement) -> awaited_ranks.AwaitedRank:
        pid = self._pids.get(place.rank, 0)
        stopped = session.stopped_pids(pid) if pid and self._spec.is_local(place.host) else []
        return awaited_ranks.AwaitedRank(place.rank, place.host.name, pid, tuple(stopped))

    def _on_failure_told(self, rank: int) -> None:
        """A rank is about to end. After a time-out the job goes on, so it waits for the others."""
        failure = self.failure(rank)
        if failure is not None and failure.is_timeout and not self._stop.running:
            self._stop.begin(self._platform.after_timeout)

    def _try_resume(self) -> None:
        if self._output.wants_pause():
            self._loop.call_later(RESUME_CHECK_SECONDS, self._try_resume)
            return
        self._resume_planned = False
        self._platform.pause_output(False)

    @contextlib.contextmanager
    def _signals(self) -> Any:
        """Handles these signals, unless the caller's parent had them ignored."""
        handlers = dict.fromkeys(_EXIT_SIGNALS, self._on_signal)
        handlers |= dict.fromkeys(_PASSED_ON, self._pass_on)
        handlers[signal.SIGQUIT] = self._on_quit
        if os.getpid() == 1:  # It cannot stop, as in a container, so nothing would continue it.
            del handlers[signal.SIGTSTP]
        installed = []
        for signum, handler in handlers.items():
            with contextlib.suppress(ValueError, RuntimeError):  # not on the main thread
                if signal.getsignal(signum) != signal.SIG_IGN:
                    self._loop.add_signal_handler(signum, handler, signum)
                    installed.append(signum)
        try:
            yield
        finally:
            for signum in installed:
                self._loop.remove_signal_handler(signum)

    def _pass_on(self, signum: signal.Signals) -> None:
        self._launch.tell(f"passes {signum.name} on to the ranks")
        self._platform.send_signal(signum, self._children.of_ranks)
        if signum == signal.SIGTSTP:  # as the user expects of Ctrl-Z; SIGCONT goes on from here
            os.kill(os.getpid(), signal.SIGSTOP)

    def _on_quit(self, signum: signal.Signals) -> None:
        """Ctrl-\\: the ranks tell what they do, and the job goes on."""
        if self._connecting:
            self._on_signal(signum)
            return
        self._output.note(
            "mydistrun: got SIGQUIT; the ranks that handle it print their stacks and go on"
        )
        self._platform.send_signal(signum, self._children.of_ranks)

    def _cancel_start(self) -> None:
        assert self._run_task is not None
        self._run_task.cancel()

    def _on_signal(self, signum: signal.Signals) -> None:
        again = self._signal is not None
        self._signal = self._signal or signum
        if self._connecting:
            self._cancel_start()
        elif again:
            self._output.note("mydistrun: killing all ranks")
            self._stop.begin(stop_sequence.AT_ONCE)
            self._server_stop.begin(stop_sequence.AT_ONCE)
        else:
            self._output.note(
                f"mydistrun: got {signum.name}, stopping the ranks (a second signal kills them)"
            )
            interrupted = signum == signal.SIGINT
            self._stop.begin(
                stop_sequence.AFTER_SIGINT
                if interrupted
                else stop_sequence.after_sigterm(self._spec.stop_timeout)
            )

    def _conclude(self) -> int:
        if self._signal is not None:
            return 128 + self._signal
        ends = list(self._ends.values())
        tails = {end.child: self._output.tail(end.child) for end in ends}
        failures = {end.child: told for end in ends if (told := self._failure_of(end)) is not None}
        cause = report.find_cause(ends, failures)
        if cause is None and self._unnamed_failure is not None:
            code, text = self._unnamed_failure
            self._output.note(text)
            return code
        if cause is None:
            return 0
        waits, caught = self._output.waits(), self._output.caught()
        self._output.note(report.format_failure(cause, ends, tails, failures, waits, caught))
        return report.exit_code(cause, ends)
