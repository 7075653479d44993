"""Child processes of one host: started together, watched, stopped without remains.

Used by the launcher for local children and by the agent for remote ones; children.py says what the
number of a child means. Owned and called by one asyncio loop; every callback of ChildEvents comes
from that loop. Each child leads its own session, dies with its parent (parent-death signal), and is
known to the guard, which also takes down the child's descendants when the parent is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Protocol

from mydist.launcher import rank_ends, server_addresses, session
from mydist.launcher.command import require_runnable
from mydist.launcher.errors import (
    EXIT_NOT_EXECUTABLE,
    EXIT_NOT_FOUND,
    EXIT_START,
    LaunchError,
    start_error,
)

STDOUT = 1
STDERR = 2
READ_BYTES = 1 << 16
# A dead child's output is read until its pipes close or, if a descendant holds them, this long.
DRAIN_SECONDS = 0.3
_PR_SET_PDEATHSIG = 1
_F_ADD_SEALS = 1033
_SEAL_ALL = 0x1 | 0x2 | 0x4 | 0x8
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True)
class ChildCommand:
    """What to run for one child. `env` is the complete environment.

    `name` is for errors. With `tells_address` it gets a pipe into which it writes one line when it
    listens.
    """

    child: int
    name: str
    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    tells_address: bool = False


class ChildEvents(Protocol):
    """Receives what happens to children, on the loop's thread."""

    def on_started(self, child: int, pid: int) -> None: ...

    def on_output(self, child: int, stream: int, data: bytes) -> None: ...

    def on_address(self, child: int, line: bytes) -> None:
        """It listens; `line` is what it wrote, without the newline."""

    def on_exited(self, child: int, status: int) -> None:
        """`status` is the exit code, or -N when signal N ended it. Its output came before."""


def die_with_parent(parent_pid: int, signum: int = signal.SIGKILL) -> None:
    """Run in a fresh child: the kernel sends it `signum` when the thread that made it ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signum), 0, 0, 0)
    if os.getppid() != parent_pid:  # the parent died before the line above took effect
        os._exit(EXIT_START)


def read_available(fd: int) -> bytes | None:
    """What a non-blocking descriptor has now; None: nothing yet, empty: it has ended."""
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def make_key_file(key: bytes) -> int:
    """An unnamed, sealed memory file with the job key; the descriptor number is inherited."""
    fd = os.memfd_create("mydist-job-key", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.write(fd, key)
    fcntl.fcntl(fd, _F_ADD_SEALS, _SEAL_ALL)
    return fd


@dataclass
class _Entry:
    command: ChildCommand
    popen: subprocess.Popen[bytes]
    pidfd: int
    pipes: dict[int, IO[bytes]]
    address_fd: int = -1
    said: bytes = b""
    status: int | None = None
    reported: bool = False
    drain: asyncio.TimerHandle | None = field(default=None, repr=False)


class ProcessGroup:
    """The children on this host. `key` is the 32-byte job key each of them inherits; with one they
    are also told how others end.

    With `die_gently`, the death of this process sends them SIGTERM and the guard waits a moment
    before it kills: for mpirun, which has files to remove.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        events: ChildEvents,
        key: bytes,
        die_gently: bool = False,
    ) -> None:
        self._loop = loop
        self._die_gently = die_gently
        self._events = events
        self._key_fd = make_key_file(key) if key else -1
        self._ends = rank_ends.RankEnds() if key else None
        self._entries: dict[int, _Entry] = {}
        self._sessions: set[int] = set()
        self._folders: list[str] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._stops = False  # From now on an end is no news for the other children.
        self._oom_kills = _cgroup_oom_kills()

    def start(self, commands: Sequence[ChildCommand]) -> None:
        """Starts all of them, or raises LaunchError (127 when a program is missing) and ends all
        children. May be called again."""
        try:
            for command in commands:
                self._start_child(command)
        except OSError as error:
            self.close()
            raise _start_error(error, command) from None

    def start_further(self, command: ChildCommand) -> None:
        """Starts one more, or raises LaunchError as `start`; the other children go on."""
        try:
            self._start_child(command)
        except OSError as error:
            raise _start_error(error, command) from None

    def make_folder(self, parent: str | None) -> str:
        """A new folder of this user alone, by default where temporary files go.

        It is removed with all in it when the group is closed, or, if this process is killed, after
        the processes that may use it. Raises LaunchError.
        """
        try:
            self._require_guard()
            folder = tempfile.mkdtemp(prefix="mydistrun-", dir=parent)
        except OSError as error:
            where = parent or "the folder for temporary files"
            raise LaunchError(f"cannot make a folder in {where}: {error.strerror}") from None
        self._folders.append(folder)
        self._tell_guard(b"/" + os.fsencode(folder).hex().encode())
        return folder

    def tell_end(self, child: int, status: int) -> None:
        """Tells the children on this host how one of another host has ended."""
        if self._ends is not None and not self._stops:
            self._ends.tell(child, status)

    def alive(self) -> list[int]:
        """The children whose exit was not reported yet."""
        return [child for child, entry in self._entries.items() if not entry.reported]

    def send_signal(self, signum: int, children: range | None = None) -> None:
        """Sends the signal to the process group of each living child of `children`, by default of
        each; SIGKILL to its session.

        A child that does not handle SIGTSTP gets SIGSTOP: the kernel ignores SIGTSTP in the group
        of a session's leader. SIGQUIT goes to handlers alone: it is a question, and ends no child.
        """
        self._stops |= signum in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        chosen = [e for c, e in self._entries.items() if children is None or c in children]
        living = {entry.popen.pid for entry in chosen if entry.status is None}
        if signum == signal.SIGKILL:
            session.kill_sessions({entry.popen.pid for entry in chosen} & self._sessions)
            return
        if signum == signal.SIGQUIT:
            session.ask_to_tell(living)
            return
        for pid in living:
            stops = signum == signal.SIGTSTP and not session.handles(pid, signum)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGSTOP if stops else signum)

    def pause_output(self, paused: bool) -> None:
        """Reads their output no more, or on; they wait in write() once the pipes are full."""
        for entry in self._entries.values() if self._paused != paused else ():
            for stream, pipe in entry.pipes.items():
                if paused:
                    self._loop.remove_reader(pipe)
                else:
                    self._loop.add_reader(pipe, self._read, entry, stream)
        self._paused = paused

    def out_of_memory(self) -> bool:
        """Whether the kernel killed a process of our cgroup for memory since the start."""
        return _cgroup_oom_kills() > self._oom_kills

    def close(self) -> None:
        """Kills whatever is left in the children's sessions and frees everything. Idempotent."""
        session.kill_sessions(self._sessions)
        for entry in self._entries.values():
            if entry.status is None:
                self._loop.remove_reader(entry.pidfd)
                entry.status = entry.popen.wait()
                os.close(entry.pidfd)
            if entry.drain is not None:
                entry.drain.cancel()
            for stream in list(entry.pipes):
                self._close_pipe(entry, stream)
            self._close_address(entry)
            entry.reported = True
        self._sessions.clear()
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(OSError):
                self._guard.stdin.close()
            self._guard.wait()
            self._guard = None
        if self._key_fd >= 0:
            os.close(self._key_fd)
            self._key_fd = -1
        if self._ends is not None:
            self._ends.close()

    def _start_child(self, command: ChildCommand) -> None:
        self._require_guard()
        env = dict(command.env)
        inherited: tuple[int, ...] = ()
        if self._key_fd >= 0:
            env["MYDIST_JOB_KEY_FD"] = str(self._key_fd)
            inherited = (self._key_fd,)
        if self._ends is not None:
            env[rank_ends.VARIABLE] = str(self._ends.fd)
            inherited += (self._ends.fd,)
        address_fd, writer_fd = os.pipe() if command.tells_address else (-1, -1)
        if command.tells_address:
            env[server_addresses.FD_VARIABLE] = str(writer_fd)
            inherited += (writer_fd,)
        try:
            popen = self._spawn(command, env, inherited)
        except BaseException:
            _close(address_fd)
            raise
        finally:
            _close(writer_fd)
        assert popen.stdout is not None and popen.stderr is not None
        pipes: dict[int, IO[bytes]] = {STDOUT: popen.stdout, STDERR: popen.stderr}
        try:
            pidfd = os.pidfd_open(popen.pid)
        except OSError:  # Nobody would hear of its end.
            popen.kill()
            popen.wait()
            _close(address_fd)
            raise
        entry = _Entry(command, popen, pidfd, pipes, address_fd)
        self._entries[command.child] = entry
        self._sessions.add(popen.pid)
        self._tell_guard(b"%c%d" % (b"~" if self._die_gently else b"+", popen.pid))
        self._loop.add_reader(entry.pidfd, self._reap, entry)
        for stream, pipe in pipes.items():
            os.set_blocking(pipe.fileno(), False)
            self._loop.add_reader(pipe, self._read, entry, stream)
        if address_fd >= 0:
            os.set_blocking(address_fd, False)
            self._loop.add_reader(address_fd, self._read_address, entry)
        self._events.on_started(command.child, popen.pid)

    def _spawn(
        self, command: ChildCommand, env: Mapping[str, str], inherited: tuple[int, ...]
    ) -> subprocess.Popen[bytes]:
        parent_pid = os.getpid()
        death_signal = signal.SIGTERM if self._die_gently else signal.SIGKILL
        return subprocess.Popen(
            list(command.argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=command.cwd,
            env=env,
            pass_fds=inherited,
            start_new_session=True,
            preexec_fn=lambda: die_with_parent(parent_pid, death_signal),
        )

    def _require_guard(self) -> None:
        if self._guard is None:
            self._guard = _start_guard()

    def _tell_guard(self, line: bytes) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(OSError):  # without a guard the job still runs
                self._guard.stdin.write(line + b"\n")
                self._guard.stdin.flush()

    def _read(self, entry: _Entry, stream: int) -> None:
        data = read_available(entry.pipes[stream].fileno())
        if data is None:
            return
        if data:
            self._events.on_output(entry.command.child, stream, data)
            return
        self._close_pipe(entry, stream)
        if entry.status is not None and not entry.pipes:
            self._report(entry)

    def _read_address(self, entry: _Entry) -> None:
        data = read_available(entry.address_fd)
        if data is None:
            return
        entry.said += data
        line, newline, _ = entry.said.partition(b"\n")
        if data and not newline and len(line) <= server_addresses.MAX_LINE_BYTES:
            return
        self._close_address(entry)
        if entry.said:  # One that closes it without a word ends, or is missed later.
            self._events.on_address(entry.command.child, line[: server_addresses.MAX_LINE_BYTES])

    def _close_address(self, entry: _Entry) -> None:
        if entry.address_fd >= 0:
            self._loop.remove_reader(entry.address_fd)
            os.close(entry.address_fd)
            entry.address_fd = -1

    def _close_pipe(self, entry: _Entry, stream: int) -> None:
        pipe = entry.pipes.pop(stream)
        self._loop.remove_reader(pipe)
        pipe.close()

    def _reap(self, entry: _Entry) -> None:
        # The session id cannot be reused while it has members, so look before and after reaping.
        session_id = entry.popen.pid
        entry.status = entry.popen.wait()
        self.tell_end(entry.command.child, entry.status)
        self._loop.remove_reader(entry.pidfd)
        os.close(entry.pidfd)
        if not session.session_pids({session_id}):
            self._sessions.discard(session_id)
            self._tell_guard(b"-%d" % session_id)
        if entry.pipes:
            entry.drain = self._loop.call_later(DRAIN_SECONDS, self._report, entry)
        else:
            self._report(entry)

    def _report(self, entry: _Entry) -> None:
        if self._paused and entry.pipes:  # its last output is still in the pipe
            entry.drain = self._loop.call_later(DRAIN_SECONDS, self._report, entry)
            return
        if not entry.reported:
            entry.reported = True
            if entry.drain is not None:
                entry.drain.cancel()
            assert entry.status is not None
            self._events.on_exited(entry.command.child, entry.status)


def _close(fd: int) -> None:
    if fd >= 0:
        os.close(fd)


def _start_guard() -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-I", "-S", session.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise start_error("the process that guards the ranks", error) from None


def _cgroup_oom_kills() -> int:
    """How often the kernel killed for memory in our cgroup (version 2 or 1); 0 when unknown."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            entries = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return 0
    for _, controllers, path in entries:
        if controllers == "":
            source = f"/sys/fs/cgroup{path}/memory.events"
        elif "memory" in controllers.split(","):
            source = f"/sys/fs/cgroup/memory{path}/memory.oom_control"
        else:
            continue
        with contextlib.suppress(OSError, ValueError), open(source, encoding="utf-8") as file:
            for line in file:
                name, _, value = line.partition(" ")
                if name == "oom_kill":
                    return int(value)
    return 0


def _found(command: ChildCommand) -> str:
    """Where the program of a child is looked for."""
    program = command.argv[0]
    if os.sep not in program:
        return shutil.which(program, path=command.env.get("PATH", os.defpath)) or program
    return os.path.join(command.cwd, program)


def _start_error(error: OSError, command: ChildCommand) -> LaunchError:
    program = command.argv[0]
    if error.errno == errno.ENOENT and not os.path.isdir(command.cwd):
        return LaunchError(f"working directory {command.cwd!r} does not exist")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        try:
            require_runnable(_found(command))
        except LaunchError as missing:
            return missing
        if os.path.isfile(_found(command)):
            return LaunchError(
                f"command {program!r} cannot be executed: a file that it needs to start, such as "
                "its loader, does not exist",
                EXIT_NOT_EXECUTABLE,
            )
        return LaunchError(f"command {program!r} not found", EXIT_NOT_FOUND)
    if error.errno in (errno.EACCES, errno.ENOEXEC):
        return LaunchError(
            f"command {program!r} cannot be executed: {error.strerror}", EXIT_NOT_EXECUTABLE
        )
    return start_error(command.name, error)
