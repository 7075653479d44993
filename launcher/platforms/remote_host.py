"""One remote host: an agent started through ssh, spoken to in frames over ssh's pipes.

ssh is run with an argument vector, in batch mode, with one fixed remote command; what the user
gave (program, arguments, environment, directory) and the job key travel as a frame on its stdin,
so they never meet a shell, an argument list or a log. Owned and called by the job's loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Sequence
from typing import Any

from mydist.launcher import framing
from mydist.launcher.bounded_writer import BoundedWriter
from mydist.launcher.errors import EXIT_START, LaunchError
from mydist.launcher.hosts import Host
from mydist.launcher.job_spec import SshOptions
from mydist.launcher.platforms.platform import JobEvents
from mydist.launcher.process_group import ChildCommand, die_with_parent, read_available

PING_SECONDS = 5.0
# An agent waits longer than we do, so that a job may be suspended for a moment.
AGENT_PATIENCE_FACTOR = 6
END_SECONDS = 3.0
FLUSH_SECONDS = 0.2
_MAX_PORT = 65535
_MAX_EXIT_CODE = 255


def ssh_command(host: Host, options: SshOptions) -> list[str]:
    """The ssh command line for a host: no user string but the host's name and ssh's own options."""
    python = shlex.quote(options.remote_python or sys.executable)
    remote = [host.name, f"{python} -m mydist.launcher.agent"]
    return ["ssh", *ssh_arguments(options), "--", *remote]


def ssh_arguments(options: SshOptions) -> list[str]:
    """What stands before the host: never waits for a password, and gives up on a silent host."""
    arguments = ["-T", "-o", "BatchMode=yes"]
    arguments += ["-o", f"ConnectTimeout={max(1, round(options.start_timeout))}"]
    # ssh gives up when the third answer in a row is due and missing.
    interval = max(1, int(options.host_timeout / 3))
    arguments += ["-o", f"ServerAliveInterval={interval}", "-o", "ServerAliveCountMax=2"]
    if options.port is not None:
        arguments += ["-p", str(options.port)]
    if options.identity_file is not None:
        arguments += ["-i", options.identity_file]
    return [*arguments, *options.extra_args]


def _start_ssh(host: Host, options: SshOptions) -> subprocess.Popen[bytes]:
    """Raises LaunchError when there is no ssh."""
    parent_pid = os.getpid()

    def prepare() -> None:
        for signum in (signal.SIGUSR1, signal.SIGUSR2):  # meant for the ranks
            signal.signal(signum, signal.SIG_IGN)
        die_with_parent(parent_pid, signal.SIGTERM)

    try:
        return subprocess.Popen(
            ssh_command(host, options),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=prepare,
        )
    except OSError as error:
        raise LaunchError(
            f"host {host.name!r}: cannot run ssh: {error.strerror}; "
            f"install an ssh client, or use --mpi"
        ) from None


class RemoteHost:
    """The agent of one host, started by ssh. `hello` becomes its first message or a LaunchError."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, host: Host, options: SshOptions, events: JobEvents
    ) -> None:
        """Raises LaunchError when there is no ssh."""
        self._ssh = ssh = _start_ssh(host, options)
        assert ssh.stdin and ssh.stdout and ssh.stderr
        self._stdin, self._stdout, self._stderr = ssh.stdin, ssh.stdout, ssh.stderr
        self.host = host
        self.hello: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._loop = loop
        self._options = options
        self._events = events
        self._frames = framing.FrameReader(expect_magic=True)
        self._errors: deque[str] = deque(maxlen=5)
        self._living: set[int] = set()
        self._lost: LaunchError | None = None
        self._paused = False
        self._ended = asyncio.Event()
        self._writer = BoundedWriter(self._stdin.fileno(), limit_bytes=framing.MAX_FRAME_BYTES)
        self._pidfd = os.pidfd_open(self._ssh.pid)
        loop.add_reader(self._pidfd, self._on_ssh_exit)
        for pipe, read in ((self._stdout, self._read), (self._stderr, self._read_errors)):
            os.set_blocking(pipe.fileno(), False)
            loop.add_reader(pipe, read)
        # From now on, because other hosts may take long to answer before the ranks start.
        self._send_ping()

    @property
    def is_lost(self) -> bool:
        """Whether the host is gone, so that it starts nothing any more."""
        return self._lost is not None

    def start(self, commands: Sequence[ChildCommand], key: bytes) -> None:
        """Sends the agent its children; STARTED frames or an ERROR follow. May be called again.

        Raises LaunchError when the host has been lost meanwhile.
        """
        if self._lost is not None:
            raise self._lost
        self._living |= {command.child for command in commands}
        children = [
            {
                "child": c.child,
                "name": c.name,
                "argv": list(c.argv),
                "env": dict(c.env),
                "tells_address": c.tells_address,
            }
            for c in commands
        ]
        job = {
            "key": key.hex(),
            "cwd": commands[0].cwd,
            "children": children,
            "silence_seconds": self._options.host_timeout * AGENT_PATIENCE_FACTOR,
        }
        self._send(framing.pack_json(framing.Kind.JOB, job))

    def send_signal(self, signum: int, children: range) -> None:
        """Asks the agent to send the signal to those of its living children."""
        self._send(framing.pack_numbers(framing.Kind.SIGNAL, signum, children.start, children.stop))
        if signum == signal.SIGTSTP:
            self._writer.flush(FLUSH_SECONDS)  # its thread is about to be stopped with us

    def tell_end(self, child: int, status: int) -> None:
        """Has the agent tell its children how one of another host has ended."""
        self._send(framing.pack_numbers(framing.Kind.ENDED, child, status))

    def pause_output(self, paused: bool) -> None:
        """Reads from the agent no more, or on; its children wait once the pipes are full."""
        if self._paused != paused and not self._stdout.closed:
            self._paused = paused
            if paused:
                self._loop.remove_reader(self._stdout)
            else:
                self._loop.add_reader(self._stdout, self._read)

    async def close(self) -> None:
        """Closes the agent's stdin, so that it stops everything; kills ssh if that takes long."""
        self._ping.cancel()
        if not self.hello.done():
            self.hello.cancel()
        self._paused = False
        self._living.clear()
        if not self._ended.is_set():
            await self._loop.run_in_executor(None, self._writer.close, 0.5)
            with contextlib.suppress(OSError):
                self._stdin.close()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_SECONDS):
                    await self._ended.wait()
        if self._ssh.poll() is None:
            self._ssh.kill()
            self._ssh.wait()
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        for pipe in (self._stdout, self._stderr):
            self._loop.remove_reader(pipe)
            pipe.close()

    def last_words(self) -> str:
        """What ssh or the remote side said last on the error stream, in one line."""
        return " / ".join(self._errors)

    def _send(self, frame: bytes) -> None:
        self._writer.push(frame)

    def _send_ping(self) -> None:
        self._send(framing.pack(framing.Kind.PING))
        self._ping = self._loop.call_later(PING_SECONDS, self._send_ping)

    def _read(self) -> None:
        data = read_available(self._stdout.fileno())
        if data is None:
            return
        if not data:
            self._loop.remove_reader(self._stdout)
            return
        try:
            for kind, payload in self._frames.feed(data):
                self._handle(kind, payload)
        except framing.FrameError as error:
            self._lose(f"its agent sent a malformed message: {error}")

    def _handle(self, kind: framing.Kind, payload: bytes) -> None:
        if kind == framing.Kind.OUTPUT:
            self._events.on_output(*framing.unpack_numbers(kind, payload))
        elif kind == framing.Kind.STARTED:
            self._events.on_started(*framing.unpack_numbers(kind, payload))
        elif kind == framing.Kind.ADDRESS:
            self._events.on_address(*framing.unpack_numbers(kind, payload))
        elif kind == framing.Kind.EXITED:
            child, status = framing.unpack_numbers(kind, payload)
            self._living.discard(child)
            self._events.on_exited(child, status)
        elif kind == framing.Kind.HELLO and not self.hello.done():
            hello = framing.unpack_json(payload)
            framing.number_in(hello, "free_port", _MAX_PORT)
            self.hello.set_result(hello)
        elif kind == framing.Kind.ERROR:
            error = framing.unpack_json(payload)
            exit_code = framing.number_in(error, "exit_code", _MAX_EXIT_CODE, EXIT_START)
            self._lose(str(error.get("text")), exit_code)
        else:
            raise framing.FrameError(f"unexpected {kind.name} frame")

    def _read_errors(self) -> None:
        data = read_available(self._stderr.fileno())
        if data is None:
            return
        if not data:
            self._loop.remove_reader(self._stderr)
        for line in data.decode("utf-8", "backslashreplace").splitlines():
            if line.strip():
                self._errors.append(line.strip()[:300])
                if self.hello.done():
                    self._events.on_note(f"[{self.host.name}] {line}")

    def _on_ssh_exit(self) -> None:
        self._loop.remove_reader(self._pidfd)
        status = self._ssh.wait()
        self._read_errors()
        if not self._paused:
            self._read_rest()
        self._ended.set()
        self._lose(self._explain_exit(status))

    def _read_rest(self) -> None:
        """What the agent sent just before the end is still in the pipe."""
        with contextlib.suppress(framing.FrameError):
            while data := read_available(self._stdout.fileno()):
                for kind, payload in self._frames.feed(data):
                    self._handle(kind, payload)

    def _explain_exit(self, status: int) -> str:
        words = self.last_words()
        shown = f": {words}" if words else ""
        if "No module named" in words:
            python = self._options.remote_python or sys.executable
            return f"mydist is not installed there for {python}{shown}"
        if status == 127:
            python = self._options.remote_python or sys.executable
            hint = "give the path of its Python with --remote-python"
            return f"{python} does not exist there; {hint}{shown}"
        if status < 0:
            return f"ssh was killed by signal {-status}{shown}"
        return f"ssh exited with {status}{shown}"

    def _lose(self, cause: str, exit_code: int = EXIT_START) -> None:
        self._lost = self._lost or LaunchError(f"host {self.host.name!r}: {cause}", exit_code)
        if not self.hello.done():
            self.hello.set_exception(self._lost)
        elif self._living:
            lost, self._living = sorted(self._living), set()
            self._events.on_host_lost(lost, cause, exit_code)
