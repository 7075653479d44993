"""Three hosts and the cables between them, made of network namespaces.

Every host has three interfaces, in this order:

    docker0  172.17.0.1 on each of them, leads nowhere, as on machines that run containers
    data0    10.61.1.N, what the host names mean
    other0   10.61.2.N, a second network between the hosts

and no default route. Each finds the others by name through its /etc/hosts. The bridges live in a
namespace of their own, so the machine's network is never touched.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from multiproc.job import job_environment

from multihost.namespace import SSH_PORT, NamespaceHost, call, sshd_config
from multihost.running_job import RunningJob

NAMES = ("hosta", "hostb", "hostc")
_PREFIX = "mydist-test-"
NETWORKS = ("data", "other")


def missing_requirement() -> str:
    """Why no cluster can be made here; empty when it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    for program in ("ip", "ssh", "ssh-keygen", "unshare", "/usr/sbin/sshd"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    name = f"{_PREFIX}{os.getpid()}-probe"
    command = ["ip", "netns", "add", name]
    made = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    if made.returncode != 0:
        return f"`ip netns add` is refused: {made.stderr.strip()}"
    try:
        inside = ["ip", "-netns", name, "link", "add", "end0", "type", "veth", "peer", "end1"]
        linked = subprocess.run(inside, capture_output=True, text=True, timeout=30, check=False)
    finally:
        call("ip", "netns", "delete", name)
    return f"no veth devices here: {linked.stderr.strip()}" if linked.returncode else ""


class Cluster:
    """The hosts, and the jobs started on them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: dict[str, NamespaceHost] = {}
        self.jobs: list[RunningJob] = []
        self._switch = f"{_PREFIX}{os.getpid()}-switch"

    def build(self) -> None:
        """Makes keys, namespaces, cables and servers."""
        for key in ("user", "stranger", *NAMES):
            call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / key))
        call("ip", "netns", "add", self._switch)
        for network in NETWORKS:
            switch = ("ip", "-netns", self._switch, "link")
            call(*switch, "add", network, "type", "bridge")
            call(*switch, "set", network, "up")
        for number, name in enumerate(NAMES, start=1):
            namespace = f"{_PREFIX}{os.getpid()}-{name}"
            host = NamespaceHost(name, namespace, number, self.folder / f"hosts_{name}")
            call("ip", "netns", "add", namespace)
            self.hosts[name] = host
            self._connect(host)
        self._write_names()
        for host in self.hosts.values():
            config = self.folder / f"sshd_{host.name}"
            config.write_text(sshd_config(self.folder, self.folder / host.name))
            host.start_sshd(config)

    def _connect(self, host: NamespaceHost) -> None:
        host.ip("link", "set", "lo", "up")
        host.ip("link", "add", "docker0", "type", "bridge")
        host.ip("address", "add", "172.17.0.1/16", "dev", "docker0")
        host.ip("link", "set", "docker0", "up")
        for network, address in zip(NETWORKS, (host.data_address, host.other_address), strict=True):
            port = f"{host.name}-{network}"[:15]
            cable = ("type", "veth", "peer", "name", port, "netns", self._switch)
            host.ip("link", "add", f"{network}0", *cable)
            host.ip("address", "add", f"{address}/24", "dev", f"{network}0")
            host.ip("link", "set", f"{network}0", "up")
            call("ip", "-netns", self._switch, "link", "set", port, "master", network, "up")

    def _write_names(self) -> None:
        keys = []
        for host in self.hosts.values():
            # As Debian's installer does, a host calls itself by a loopback address.
            lines = ["127.0.0.1 localhost", f"127.0.1.1 {host.name}"]
            others = [other for other in self.hosts.values() if other is not host]
            lines += [f"{other.data_address} {other.name}" for other in others]
            host.hosts_file.write_text("\n".join(lines) + "\n")
            public = (self.folder / f"{host.name}.pub").read_text()
            keys.append(f"[{host.name}]:{SSH_PORT} {public}")
        (self.folder / "known").write_text("".join(keys))

    def ssh_flags(self, key: str = "user", known: str = "known") -> list[str]:
        """The flags with which mydistrun reaches the hosts."""
        options = f"-F none -l root -o UserKnownHostsFile={self.folder / known}"
        options += " -o GlobalKnownHostsFile=none -o IdentitiesOnly=yes"
        return ["-p", str(SSH_PORT), "-i", str(self.folder / key), "--ssh-args", options]

    def start(
        self, host: str, *arguments: str, ssh: Sequence[str] = (), env: dict[str, str] | None = None
    ) -> RunningJob:
        """Starts `mydistrun ARGUMENTS` on a host; `ssh` replaces the usual ssh flags."""
        flags = [*(ssh or self.ssh_flags()), *arguments]
        words = self.hosts[host].command(sys.executable, "-m", "mydist.launcher", *flags)
        environment = job_environment(env)
        # Killing a connection is what these tests do; nothing may depend on stalls being noticed.
        del environment["MYDIST_STALL_SHUTDOWN_SECONDS"]
        self.jobs.append(RunningJob(words, self.folder, environment))
        return self.jobs[-1]

    def wait_empty(self, seconds: float = 5.0) -> None:
        """Blocks until nothing but the servers runs on any host; fails naming what still does."""
        deadline = time.monotonic() + seconds
        for host in self.hosts.values():
            host.wait_empty(deadline - time.monotonic())

    def remove(self) -> None:
        """Takes everything down, in whatever state it is. Idempotent."""
        while self.jobs:
            self.jobs.pop().kill()
        while self.hosts:
            self.hosts.popitem()[1].remove()
        remove_namespaces(f"{_PREFIX}{os.getpid()}-")


def remove_namespaces(prefix: str) -> None:
    """Deletes the namespaces whose names begin so, and kills what runs in them."""
    for line in call("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.split() else ""
        if name.startswith(prefix):
            NamespaceHost(name, name, 0, Path("/dev/null")).remove()


def remove_abandoned() -> None:
    """Removes what earlier test processes left that were killed before they could clean up."""
    for line in call("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.split() else ""
        owner = name.removeprefix(_PREFIX).partition("-")[0]
        if name.startswith(_PREFIX) and owner.isdigit() and not Path(f"/proc/{owner}").exists():
            remove_namespaces(f"{_PREFIX}{owner}-")


@contextmanager
def make_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster for the length of a block; nothing of it is left behind."""
    folder.chmod(0o700)  # ssh refuses keys that others could read
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    cluster = Cluster(folder)
    try:
        cluster.build()
        yield cluster
    finally:
        cluster.remove()
