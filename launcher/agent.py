"""The agent: stands for the launcher on a remote host. Run by ssh, never by hand.

Reads frames on stdin (its children, signals, pings), writes frames on stdout (output, exits), and
stops everything when stdin ends, when its stdout breaks, or when nothing came for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time

from mydist.launcher import framing
from mydist.launcher.bounded_writer import BoundedWriter
from mydist.launcher.check_build import has_program, program_path
from mydist.launcher.endpoints import free_port, interface_addresses
from mydist.launcher.environment import inherited_environment
from mydist.launcher.errors import EXIT_START, LaunchError
from mydist.launcher.framing import Kind
from mydist.launcher.process_group import ChildCommand, ProcessGroup, read_available

# Until the launcher says how long: time for other hosts to answer.
SILENCE_SECONDS = 60.0
TERM_SECONDS = 1.0
PAUSE_CHECK_SECONDS = 0.02


class Agent:
    """Runs the children on this host for the launcher at the other end of `in_fd` and `out_fd`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, in_fd: int, out_fd: int) -> None:
        self._loop = loop
        self._in_fd = in_fd
        self._writer = BoundedWriter(out_fd, limit_bytes=4 << 20, stall_seconds=float("inf"))
        self._frames = framing.FrameReader()
        self._group: ProcessGroup | None = None
        self._done = asyncio.Event()
        self._last_heard = time.monotonic()
        self._silence_seconds = SILENCE_SECONDS

    async def run(self) -> int:
        """Serves until the launcher is gone or done; returns the exit code of the agent."""
        hello = {
            "python": sys.executable,
            "free_port": free_port("0.0.0.0"),
            "ssh_connection": os.environ.get("SSH_CONNECTION", ""),
            "interfaces": interface_addresses(),
            "server_program": str(program_path()),
            "has_server_program": has_program(),
        }
        self._writer.push(framing.MAGIC + framing.pack_json(Kind.HELLO, hello))
        for signum in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(signum, self._done.set)
        for signum in (signal.SIGUSR1, signal.SIGUSR2):  # not ignored: ranks would inherit that
            self._loop.add_signal_handler(signum, lambda: None)
        os.set_blocking(self._in_fd, False)
        self._loop.add_reader(self._in_fd, self._read)
        watch = self._loop.create_task(self._watch_launcher())
        await self._done.wait()
        watch.cancel()
        self._loop.remove_reader(self._in_fd)
        await self._stop_children()
        self._writer.close(timeout=0.5)
        return 0

    def on_started(self, child: int, pid: int) -> None:
        """A child runs."""
        self._writer.push(framing.pack_numbers(Kind.STARTED, child, pid))

    def on_output(self, child: int, stream: int, data: bytes) -> None:
        """Forwards output; stops reading more while ssh does not take it."""
        self._writer.push(framing.pack_numbers(Kind.OUTPUT, child, stream, data=data))
        if self._writer.wants_pause() and self._group is not None:
            self._group.pause_output(True)
            self._loop.call_later(PAUSE_CHECK_SECONDS, self._try_resume)

    def on_address(self, child: int, line: bytes) -> None:
        """A server listens."""
        self._writer.push(framing.pack_numbers(Kind.ADDRESS, child, data=line))

    def on_exited(self, child: int, status: int) -> None:
        """A child ended."""
        self._writer.push(framing.pack_numbers(Kind.EXITED, child, status))

    def _try_resume(self) -> None:
        if self._writer.wants_pause():
            self._loop.call_later(PAUSE_CHECK_SECONDS, self._try_resume)
        elif self._group is not None:
            self._group.pause_output(False)

    async def _watch_launcher(self) -> None:
        while not self._writer.dead:
            await asyncio.sleep(1.0)
            if time.monotonic() - self._last_heard > self._silence_seconds:
                print(
                    f"mydistrun has sent nothing for {self._silence_seconds:g} s; "
                    f"stopping the ranks",
                    file=sys.stderr,
                )
                break
        self._done.set()

    def _read(self) -> None:
        data = read_available(self._in_fd)
        if data is None:
            return
        if not data:
            self._done.set()
            return
        self._last_heard = time.monotonic()
        try:
            for kind, payload in self._frames.feed(data):
                self._handle(kind, payload)
        except (
            LaunchError,
            framing.FrameError,
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
        ) as error:
            code = error.exit_code if isinstance(error, LaunchError) else EXIT_START
            message = {"text": str(error), "exit_code": code}
            self._writer.push(framing.pack_json(Kind.ERROR, message))
            self._done.set()

    def _handle(self, kind: Kind, payload: bytes) -> None:
        if kind == Kind.JOB:
            self._start(payload)
        elif kind == Kind.SIGNAL:
            if self._group is not None:
                signum, first, end = framing.unpack_numbers(kind, payload)
                self._group.send_signal(signum, range(first, end))
        elif kind == Kind.ENDED:
            if self._group is not None:
                self._group.tell_end(*framing.unpack_numbers(kind, payload))
        elif kind != Kind.PING:
            raise framing.FrameError(f"unexpected {kind.name} frame")

    def _start(self, payload: bytes) -> None:
        job = framing.unpack_json(payload)
        cwd = str(job["cwd"])
        self._silence_seconds = float(job["silence_seconds"])
        inherited = inherited_environment(os.environ)
        commands = [
            ChildCommand(
                child=int(c["child"]),
                name=str(c["name"]),
                argv=list(c["argv"]),
                env={**inherited, **c["env"]},
                cwd=cwd,
                tells_address=bool(c["tells_address"]),
            )
            for c in job["children"]
        ]
        if self._group is None:
            self._group = ProcessGroup(self._loop, self, bytes.fromhex(job["key"]))
        self._group.start(commands)

    async def _stop_children(self) -> None:
        if self._group is None:
            return
        self._group.pause_output(False)  # a child blocked in write() could not end by itself
        self._group.send_signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TERM_SECONDS):
                while self._group.alive():
                    await asyncio.sleep(0.01)
        self._group.close()


def main() -> int:
    """Keeps stdout for frames alone: what anything else prints goes to the error stream."""
    out_fd = os.dup(1)
    os.dup2(2, 1)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    loop = asyncio.new_event_loop()
    with contextlib.closing(loop):
        return loop.run_until_complete(Agent(loop, 0, out_fd).run())


if __name__ == "__main__":
    sys.exit(main())
