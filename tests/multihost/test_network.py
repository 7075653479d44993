"""Networks between hosts that are slow, lose packets, cut connections, or know only IPv6."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from soon import SOON_S

from multihost.cluster import Cluster
from multihost.namespace import NamespaceHost, call
from multihost.running_job import RunningJob
from multihost.test_loss import ready_pids, report_of

TRAIN = str(Path(__file__).parent / "workers" / "train.py")


def dropped_packets(host: NamespaceHost) -> int:
    """By the queue of its interface, so far."""
    shown = call("tc", "-netns", host.namespace, "-json", "-s", "qdisc", "show", "dev", "data0")
    return sum(int(row["drops"]) for row in json.loads(shown))


@pytest.mark.deep
def test_a_network_that_loses_packets_is_only_slow(gloo: None, cluster: Cluster) -> None:
    hosts = [cluster.hosts["hosta"], cluster.hosts["hostb"]]
    for host in hosts:
        # Whatever comes faster than this, or in too large a burst, is thrown away.
        shape = ("tbf", "rate", "30mbit", "burst", "8kb", "latency", "2ms")
        call("tc", "-netns", host.namespace, "qdisc", "add", "dev", "data0", "root", *shape)
    flags = ["-x", "MYDIST_STALL_WARNING_SECONDS=60", "-H", "hosta:1,hostb:1"]
    job = cluster.start("hosta", *flags, sys.executable, TRAIN, "report")
    output = job.finish(120).expect_success().output  # That it reports means that all was right.
    assert "REPORT " in output
    assert min(map(dropped_packets, hosts)) > 20, "the network has lost nothing"
    assert "Error" not in output and "WARNING" not in output, output


def kill_connections(host: NamespaceHost, peer: str) -> int:
    """Resets the connections between ranks, as a middlebox does; how many."""
    others = ["dst", peer, "sport", "!=", ":2222", "dport", "!=", ":2222"]
    command = ["ip", "netns", "exec", host.namespace, "ss", "-K", "-H", "-t", *others]
    killed = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return len(killed.stdout.splitlines())


def test_a_reset_connection_is_not_called_a_crash(gloo: None, cluster: Cluster) -> None:
    job = cluster.start("hosta", "-H", "hosta:1,hostb:1", sys.executable, TRAIN, "forever")
    ready_pids(job, 2)
    hostb = cluster.hosts["hostb"]
    reset_at = datetime.datetime.now()
    if kill_connections(hostb, cluster.hosts["hosta"].data_address) == 0:
        job.kill()
        pytest.skip("this kernel resets no connections (ss -K)")
    ended = job.finish()
    assert ended.code == 1, ended.output
    times = re.findall(r"^\[\d\]<stderr>:mydist ERROR (\S+) ", ended.output, re.MULTILINE)
    assert len(times) == 2, ended.output
    for text in times:
        told_at = datetime.datetime.combine(reset_at, datetime.time.fromisoformat(text))
        # The clock may have passed midnight.
        assert (told_at - reset_at).total_seconds() % 86_400 < SOON_S, ended.output
    for rank, host in ((0, "hostb"), (1, "hosta")):
        prefix = f"[{rank}]<stderr>:mydist."
        (line,) = [line for line in ended.output.splitlines() if line.startswith(prefix)]
        # A rank hears of it when it sends or receives, or from the other one, that leaves then.
        assert "Error: allreduce 'step': " in line, line
        assert f"rank {1 - rank} (host {host}" in line and "connection" in line, line
        told = line.replace("Either that process has died, or the network has cut", "")
        assert "died" not in told, line
    assert "mydist.PeerLostError: " in ended.output
    assert "was killed by" not in report_of(ended.output)
    cluster.wait_empty()


def give_ipv6_only(cluster: Cluster) -> None:
    """Takes the IPv4 addresses of the hosts away, and lets their names mean IPv6 ones."""
    for host in cluster.hosts.values():
        host.ip("address", "flush", "dev", "data0")
        address = f"fd00:61::{host.number}/64"
        host.ip("-6", "address", "add", address, "dev", "data0", "nodad")
    names = [f"fd00:61::{host.number} {host.name}" for host in cluster.hosts.values()]
    for host in cluster.hosts.values():
        host.hosts_file.write_text("::1 localhost\n" + "\n".join(names) + "\n")


def places_of(job: RunningJob) -> list[list[int]]:
    output = job.finish(60).expect_success().output
    (line,) = [line for line in output.splitlines() if "REPORT " in line]
    return [row["place"] for row in json.loads(line.partition("REPORT ")[2])]


@pytest.mark.deep
def test_hosts_with_ipv6_addresses(gloo: None, cluster: Cluster) -> None:
    give_ipv6_only(cluster)
    known = (cluster.folder / "known").read_text().splitlines()
    addresses = [
        line.replace(f"[{host.name}]", f"[fd00:61::{host.number}]")
        for line in known
        for host in cluster.hosts.values()
        if f"[{host.name}]" in line
    ]
    (cluster.folder / "known").write_text("\n".join([*known, *addresses]) + "\n")
    places = [[rank, 2, 0, 1] for rank in range(2)]
    for hosts in ("hosta:1,hostb:1", "[fd00:61::1]:1,[fd00:61::2]:1"):
        flags = ["--verbose", "-H", hosts]
        job = cluster.start("hosta", *flags, sys.executable, TRAIN, "report")
        assert places_of(job) == places
        assert "mydistrun: rendezvous listens on fd00:61::1:" in job.output or (
            "rendezvous listens on [fd00:61::1]:" in job.output
        ), job.output
