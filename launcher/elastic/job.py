"""An elastic job from start to exit code: does what `decide` says, and reports what happens to it.

It owns the processes and the rendezvous, so it alone chooses the ranks of an epoch; see decision
0032.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from mydist.launcher import report, stop_sequence
from mydist.launcher.elastic import discovery
from mydist.launcher.elastic.membership import Epoch, Offer, Settings, Slot, Stage
from mydist.launcher.elastic.roster import Book, Report
from mydist.launcher.elastic.workers import Workers
from mydist.launcher.errors import EXIT_START, LaunchError
from mydist.launcher.hosts import Host
from mydist.launcher.job import Job, run_as
from mydist.launcher.job_spec import ElasticOptions, JobSpec
from mydist.launcher.output import JobOutput
from mydist.launcher.platforms.elastic import ElasticPlatform
from mydist.launcher.platforms.platform import Launch

# How often membership is looked at when nothing happens; times in it are coarser.
TICK_SECONDS = 0.1
WAIT_LINE_SECONDS = 30.0
_MOST_BLAMED = 64
_WHY_BYTES = 2000


def run_elastic_job(spec: JobSpec, environment: Mapping[str, str] = os.environ) -> int:
    """Runs an elastic job to its end, as `run_job` does."""
    return run_as(ElasticJob, spec, Workers(), environment)


class ElasticJob(Job):
    """The running job."""

    def __init__(
        self, spec: JobSpec, workers: Workers, environment: Mapping[str, str], output: JobOutput
    ) -> None:
        super().__init__(spec, workers, environment, output)
        assert spec.elastic is not None
        self._options: ElasticOptions = spec.elastic
        self._workers = workers
        settings = Settings(
            self._options.min_np,
            self._options.max_np,
            self._options.timeout,
            self._options.cooldown,
            self._options.reset_limit,
            may_grow=bool(self._options.discovery),
        )
        self._book = Book(settings, time.monotonic())
        self._slots: dict[int, Slot] = {}
        self._expected: set[int] = set()  # They were told to end, so their ends are no losses.
        self._asked = 0  # The epoch whose members know that a new one is wanted.
        self._gave_up = ""
        self._whys: dict[int, str] = {}  # Why workers left the last epoch.
        self._tasks: set[asyncio.Task[None]] = set()
        self._noted: set[str] = set()
        self._told_given_up: set[str] = set()
        self._recent: list[report.ChildEnd] = []  # Since the last epoch began.
        self._late: list[report.ChildEnd] = []  # Failures after a rank was done.
        self._told_wait_of = 0  # The number of an epoch.
        self._is_done = False  # A rank has said that the work is done.
        self._left_early = ""  # A rank that ended well before that.

    async def run(self) -> int:
        """Starts, goes from epoch to epoch, cleans up, reports. Raises LaunchError."""
        self._loop = self.loop = asyncio.get_running_loop()
        self._all_ended = asyncio.Event()
        self._launch = Launch(self._spec, self._environment, self._loop, self)
        self._platform = self._starter = ElasticPlatform(self._launch, _Relay(self))
        self._stop = stop_sequence.StopSequence(
            self._loop, lambda signum: self._platform.send_signal(signum, self._workers.everyone)
        )
        self._server_stop = self._stop
        self._run_task = asyncio.current_task()
        self._connecting = True
        with self._signals():
            try:
                await self._starter.connect(self._workers)
                await self._first_offers()
                self._connecting = False
                if self._options.discovery:
                    self._spawn(self._discover())
                self._spawn(self._tick())
                await self._all_ended.wait()
            except asyncio.CancelledError:
                if self._signal is None:
                    raise
            finally:
                self._connecting = False
                self._stop.cancel()
                for task in self._tasks:
                    task.cancel()
                await asyncio.gather(*self._tasks, return_exceptions=True)
                await self._platform.close()
        return self._conclude()

    # Hosts

    async def _first_offers(self) -> None:
        """Raises LaunchError when the discovery script fails at once."""
        if not self._options.discovery:
            self._offer(self._spec.hosts)
            return
        try:
            self._offer(await self._ask_script())
        except discovery.DiscoveryError as error:
            raise LaunchError(f"{self._script_name()}: {error}") from None

    async def _discover(self) -> None:
        while True:
            await asyncio.sleep(discovery.EVERY_SECONDS)
            try:
                self._offer(await self._ask_script())
            except discovery.DiscoveryError as error:
                self._note_once(
                    f"mydistrun: {self._script_name()}: {error}; the hosts stay as they were"
                )

    async def _ask_script(self) -> tuple[Host, ...]:
        return await discovery.discover(self._options.discovery, self._options.slots_per_host)

    def _script_name(self) -> str:
        return f"--host-discovery-script {self._options.discovery[0]!r}"

    def _offer(self, hosts: Sequence[Host]) -> None:
        offers = tuple(Offer(host.name, host.slots) for host in hosts)
        if offers != self._book.offers:
            self._launch.tell(f"hosts: {', '.join(f'{n}:{s}' for n, s in offers) or 'none'}")
        self._book.offer(offers)

    # Membership

    async def _tick(self) -> None:
        while True:
            self._act()
            self._tell_wait_for_ranks(time.monotonic())
            await asyncio.sleep(TICK_SECONDS)

    def _tell_wait_for_ranks(self, now: float) -> None:
        """Once for each epoch: no time but --elastic-timeout limits how long."""
        number = self._book.epoch.number + 1 if self._book.epoch is not None else 1
        is_long = self._book.waits(now) > WAIT_LINE_SECONDS
        if is_long and number != self._told_wait_of and not self._stop.running:
            self._told_wait_of = number
            stages = [member.stage for member in self._book.members.values()]
            ready, starting = stages.count(Stage.READY), stages.count(Stage.STARTING)
            self._output.note(
                f"mydistrun: epoch {number} waits for ranks: {ready} are ready, {starting} start, "
                f"--min-np is {self._options.min_np}"
            )

    def _act(self) -> None:
        """Does what membership says now."""
        is_needed = any(member.lost for member in self._book.members.values())
        if self._left_early and is_needed and not self._is_done and not self._gave_up:
            self._give_up(f"{self._left_early} ended with code 0, while others needed it")
        while not self._stop.running and not self._gave_up:
            now = time.monotonic()
            decision = self._book.decide(now)
            for slot in decision.start:
                self._start_worker(slot, now)
            for worker, reason in decision.stop:
                self._end_worker(worker, reason)
            for worker in decision.dismiss:
                self._dismiss(worker)
            if decision.ask:
                self._ask()
            if decision.give_up:
                self._give_up(decision.give_up)
            if decision.form is None:
                break
            self._begin(decision.form, now)
        for host in self._book.given_up.keys() - self._told_given_up:
            self._tell_given_up(host)
        self._end_if_over()

    def _tell_given_up(self, host: str) -> None:
        self._told_given_up.add(host)
        self._output.note(f"mydistrun: gave up host {host}: {self._book.given_up[host]}")

    def _start_worker(self, slot: Slot, now: float) -> None:
        worker = self._book.start(slot, now)
        self._slots[worker] = slot
        host = Host(slot.host, 1)
        self._workers.add(worker, host, slot.number)
        self._spawn(self._start_process(worker, host))

    async def _start_process(self, worker: int, host: Host) -> None:
        try:
            self._output.add_child(worker)
            await self._starter.start_worker(worker, host)
        except LaunchError as error:
            self._note_once(f"mydistrun: {error}")
            self._end(worker, error.exit_code, lost="it could not be started")
            return
        # Its host may have answered after the signals that were meant for it, too.
        if worker in self._expected or self._stop.running:
            self._kill(worker)

    def _kill(self, worker: int) -> None:
        self._platform.send_signal(signal.SIGKILL, range(worker, worker + 1))

    def _end_worker(self, worker: int, reason: str) -> None:
        """It is killed. With a reason its slot rests as after any loss."""
        if worker in self._expected:
            return
        if reason:
            self._output.note(f"mydistrun: kills {self._full_name(worker)}: {reason}")
        else:
            self._expected.add(worker)
        self._kill(worker)  # What is stopped handles no gentler signal.

    def _dismiss(self, worker: int) -> None:
        """A rank that is not needed any more ends by itself, or is killed."""
        if worker in self._expected:
            return
        self._expected.add(worker)
        reason = "the work is done" if self._book.finishing else "its slot was taken away"
        self._starter.send(worker, {"end": reason})
        self._output.note(f"mydistrun: {self._full_name(worker)} leaves: {reason}")
        self._book.end(worker, time.monotonic(), counts=False)
        self._loop.call_later(self._spec.stop_timeout, self._kill, worker)

    def _ask(self) -> None:
        """Members learn, at their next commit, that a new epoch is wanted."""
        epoch = self._book.epoch
        if epoch is None or self._asked == epoch.number:
            return
        self._asked = epoch.number
        for worker in epoch.workers:
            self._starter.send(worker, {"ask": epoch.number})

    def _begin(self, epoch: Epoch, now: float) -> None:
        before = self._book.epoch
        self._book.apply(epoch, now)
        self._workers.number(epoch)
        self._whys.clear()
        self._recent.clear()
        size = len(epoch.workers)
        for rank, worker in enumerate(epoch.workers):
            world = {"epoch": epoch.number, "rank": rank, "size": size, "root": epoch.root}
            self._starter.send(worker, {"world": world})
        if before is not None:
            count = f"{size} rank" if size == 1 else f"{size} ranks"
            self._output.note(
                f"mydistrun: epoch {epoch.number}: {count}, before {len(before.workers)}; "
                f"the state is that of rank {epoch.root}"
            )

    def _give_up(self, reason: str) -> None:
        self._gave_up = reason
        self._output.note(f"mydistrun: the job ends: {reason}")
        self._stop.begin(stop_sequence.AFTER_FAILURE)

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _note_once(self, text: str) -> None:
        if text not in self._noted:
            self._noted.add(text)
            self._output.note(text)

    # What workers say

    def on_message(self, worker: int, message: Mapping[str, Any]) -> None:
        """A worker waits for an epoch, or is done."""
        if worker not in self._slots:
            return
        if message.get("done"):
            self._is_done = True
            self._book.finish()
        elif (said := _report_of(message)) is not None:
            if said.lost:
                self._whys[worker] = str(message.get("why", ""))[:_WHY_BYTES]
                # Others may still wait for it in the start of this epoch.
                self._starter.end_rounds(said.epoch, f"another rank has left epoch {said.epoch}")
            self._book.ready(worker, said, time.monotonic())
        self._act()

    # JobEvents

    def _end(self, child: int, status: int, **facts: Any) -> None:
        if child in self._ends or child not in self._workers.everyone:
            return
        self._output.finish(child)
        end = self._ends[child] = self._end_of(child, status, **facts)
        self._recent.append(end)
        expected = child in self._expected or self._stop.started
        if status == 0 and not end.lost and child not in self._expected:
            member = self._book.members.get(child)
            if member is not None and member.rank >= 0:
                self._left_early = self._left_early or self._full_name(child)
                self._book.finish()
        if end.failed and not expected and self._book.finishing:
            self._late.append(end)
        counts = not expected and not self._book.finishing
        member = self._book.end(child, time.monotonic(), counts=counts)
        if member is not None and counts:
            self._output.note(
                f"mydistrun: lost {self._full_name(child)}, which {end.describe()} "
                f"after {end.at:.1f} s"
            )
        if member is not None and self._book.epoch is not None and member.rank >= 0:
            epoch = self._book.epoch.number
            self._starter.end_rounds(epoch, f"rank {member.rank} of epoch {epoch} has ended")
        self._act()

    def on_exited(self, child: int, status: int, *, is_first: bool = False, **facts: bool) -> None:
        """A worker ended."""
        facts["out_of_memory"] = status == -signal.SIGKILL and self._platform.out_of_memory()
        facts["stopped"] = self._stop.started or child in self._expected
        self._end(child, status, **facts)

    def _on_failure_told(self, rank: int) -> None:
        """Its end follows."""

    def _end_of(self, child: int, status: int, **facts: Any) -> report.ChildEnd:
        return report.ChildEnd(
            child=child,
            host=self._workers.host(child).name,
            pid=self._pids.get(child, 0),
            status=status,
            at=time.monotonic() - self._started_at,
            name=self._workers.name(child),
            **facts,
        )

    def _end_if_over(self) -> None:
        """The job is over when no worker lives, and none is going to be started."""
        if self._ends.keys() < self._slots.keys():
            return
        if self._book.finishing or self._stop.running or self._gave_up:
            self._stop.cancel()
            self._all_ended.set()

    def _conclude(self) -> int:
        if self._signal is not None:
            return 128 + self._signal
        if not self._gave_up:
            return self._report(self._late[0]) if self._late else 0
        if self._gave_up.startswith(("all ranks", "no host")):
            failed = [end for end in self._recent if end.failed]
            own = [e for e in failed if not report.is_consequence(self._output.failure(e.child))]
            if own or failed:
                return self._report((own or failed)[0])
        for rank, why in enumerate(dict.fromkeys(self._whys.values())):
            if rank < report.MAX_OTHERS_LISTED and why:
                self._output.note(f"  a rank said: {why}")
        return EXIT_START

    def _report(self, cause: report.ChildEnd) -> int:
        """Tells how the worker ended; returns the exit code of the job."""
        tails = {cause.child: self._output.tail(cause.child)}
        self._output.note(report.format_failure(cause, [cause], tails, {}))
        return report.exit_code(cause, [cause])


class _Relay:
    """Passes on to the job's loop what the thread of the rendezvous hears."""

    def __init__(self, job: ElasticJob) -> None:
        self._job = job

    def on_message(self, worker: int, message: dict[str, Any]) -> None:
        self._job.loop.call_soon_threadsafe(self._job.on_message, worker, message)


def _report_of(message: Mapping[str, Any]) -> Report | None:
    """What a waiting worker says; None when it is something else, or malformed."""
    epoch, commit, blamed = (message.get(name) for name in ("ready", "commit", "blamed"))
    if type(epoch) is not int or type(commit) is not int or not isinstance(blamed, list):
        return None
    ranks = [rank for rank in blamed[:_MOST_BLAMED] if type(rank) is int]
    return Report(epoch, commit, bool(message.get("lost")), ranks)
