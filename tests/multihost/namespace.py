"""One host of a test: a network namespace with a host name, an /etc/hosts and an sshd of its own.

Processes are shared with the machine, so a test can look at and kill what runs on a host.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SSH_PORT = 2222
# ip-netns(8) gives each command a mount namespace of its own, so the bind mount is seen by nobody
# else; the host name lives in the UTS namespace that unshare adds.
_ENTER = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


def call(*command: str) -> str:
    """Runs a command to its end and returns what it printed; fails with its error stream."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"
    return done.stdout


@dataclass
class NamespaceHost:
    """The host `name`, whose namespace is called `namespace`; `number` ends its addresses."""

    name: str
    namespace: str
    number: int
    hosts_file: Path
    sshd: subprocess.Popen[bytes] | None = None

    @property
    def data_address(self) -> str:
        """Its address in the network that the host names stand for."""
        return f"10.61.1.{self.number}"

    @property
    def other_address(self) -> str:
        """Its address in the second network."""
        return f"10.61.2.{self.number}"

    def command(self, *words: str) -> list[str]:
        """The words as a command that runs on this host; the process keeps its pid."""
        inside = ["unshare", "--uts", "sh", "-c", _ENTER, "sh", self.name, str(self.hosts_file)]
        return ["ip", "netns", "exec", self.namespace, *inside, *words]

    def ip(self, *words: str) -> None:
        """Runs ip(8) on this host."""
        call("ip", "-netns", self.namespace, *words)

    def sent_bytes(self, interface: str) -> int:
        """How much has left through the interface so far."""
        text = call("ip", "-netns", self.namespace, "-json", "-stats", "link", "show", interface)
        rows: list[dict[str, Any]] = json.loads(text)
        return int(rows[0]["stats64"]["tx"]["bytes"])

    def start_sshd(self, config: Path) -> None:
        """Starts sshd and waits until it listens."""
        command = self.command("/usr/sbin/sshd", "-D", "-e", "-f", str(config))
        self.sshd = subprocess.Popen(command, stderr=subprocess.PIPE)
        assert self.sshd.stderr is not None
        line = self.sshd.stderr.readline()
        assert b"listening" in line, line
        # Never read again; an sshd whose error stream is full would wait.
        os.set_blocking(self.sshd.stderr.fileno(), False)

    def pids(self) -> list[int]:
        """All processes on this host but its sshd."""
        listed = call("ip", "netns", "pids", self.namespace).split()
        return [int(pid) for pid in listed if self.sshd is None or int(pid) != self.sshd.pid]

    def pids_running(self, words: str) -> list[int]:
        """The processes on this host whose command line contains the words."""
        return [pid for pid in self.pids() if words in command_line(pid)]

    def wait_empty(self, seconds: float) -> None:
        """Blocks until nothing but sshd runs here; fails naming what still does."""
        deadline = time.monotonic() + seconds
        while left := self.pids():
            names = {pid: command_line(pid) for pid in left}
            wait_gone(left, deadline - time.monotonic(), f"on {self.name}: {names}")

    def remove(self) -> None:
        """Kills everything here and deletes the namespace."""
        if self.sshd is not None:
            self.sshd.kill()
            self.sshd.communicate()
            self.sshd = None
        while left := self.pids():
            for pid in left:
                signal_process(pid, signal.SIGKILL)
            wait_gone(left, 10.0, f"on {self.name}, after SIGKILL")
        call("ip", "netns", "delete", self.namespace)


def command_line(pid: int) -> str:
    """The command line of a process; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def signal_process(pid: int, signum: signal.Signals) -> None:
    """Sends a signal to a process that may be gone already."""
    try:
        os.kill(pid, signum)
    except ProcessLookupError:
        return


def wait_gone(pids: Sequence[int], seconds: float, what: str = "") -> None:
    """Blocks until none of the processes runs; fails when one still does after `seconds`."""
    deadline = time.monotonic() + seconds
    for pid in pids:
        try:
            fd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            ready, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"process {pid} still runs after {seconds:.1f} s {what}"
        finally:
            os.close(fd)


def sshd_config(folder: Path, host_key: Path) -> str:
    """The configuration of one host's sshd: one user key, and this Python's packages."""
    path = os.pathsep.join(entry for entry in sys.path if entry)
    return (
        f"Port {SSH_PORT}\nHostKey {host_key}\nPidFile none\nStrictModes no\nUsePAM no\n"
        f"AuthorizedKeysFile {folder}/user.pub\nPermitRootLogin prohibit-password\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nMaxStartups 100\n"
        f'SetEnv "PYTHONPATH={path}"\n'
    )
