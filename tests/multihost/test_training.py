"""Ranks on several hosts: their places, their results, their network and their timeline."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from multihost.cluster import Cluster
from multihost.running_job import STOP_SECONDS, RunningJob

TRAIN = str(Path(__file__).parent / "workers" / "train.py")
# A million 64-bit integers, the only tensor of train.py's report that is not tiny: of N hosts each
# sends 2n(N-1)/N, with two that is the tensor itself. Headers, ssh and the start come on top.
BIG_BYTES = 8 << 20
MORE_BYTES = 2 << 20
# Without it init() would measure with tensors of its own.
NOTHING_MEASURED = ("--bucket-size-mb", "4")


def report_of(job: RunningJob) -> list[dict[str, Any]]:
    """What the ranks found, by rank. That there is a report means that all results were right."""
    output = job.finish().expect_success().output
    (line,) = [line for line in output.splitlines() if "REPORT " in line]
    rows: list[dict[str, Any]] = json.loads(line.partition("REPORT ")[2])
    return rows


def test_four_ranks_on_two_hosts(gloo: None, cluster: Cluster) -> None:
    hosts = cluster.hosts.values()
    sent = {host.name: host.sent_bytes("data0") for host in hosts}
    flags = ["--timeline-filename", "t.json", "--verbose", *NOTHING_MEASURED]
    flags += ["-np", "4", "-H", "hosta:2,hostb:2"]
    job = cluster.start("hosta", *flags, sys.executable, TRAIN, "report")
    ranks = report_of(job)
    assert [row["host"] for row in ranks] == ["hosta", "hosta", "hostb", "hostb"]
    assert [row["place"] for row in ranks] == [[r, 4, r % 2, 2] for r in range(4)]
    assert [row["cross"] for row in ranks] == [[0, 2], [0, 2], [1, 2], [1, 2]]

    # The rendezvous listens on the one address that hostb knows: not on loopback, nor on all.
    assert "mydistrun: rendezvous listens on 10.61.1.1:" in job.output
    assert all(row["listening"] in (["10.61.1.1"], []) for row in ranks)
    assert ranks[0]["listening"] == ["10.61.1.1"]
    for row in ranks:
        own = cluster.hosts[row["host"]].data_address
        assert {pair[0] for pair in row["connections"]} == {own}
        assert {pair[1] for pair in row["connections"]} == {"10.61.1.1", "10.61.1.2"}
    for name in ("hosta", "hostb"):
        host_sent = cluster.hosts[name].sent_bytes("data0") - sent[name]
        assert BIG_BYTES <= host_sent < BIG_BYTES + MORE_BYTES
    assert all(host.sent_bytes("other0") < BIG_BYTES / 200 for host in hosts)

    events = json.loads((cluster.folder / "t.json").read_text())
    events = events["traceEvents"] if isinstance(events, dict) else events
    for rank in range(4):
        names = {event["name"] for event in events if event["pid"] == rank}
        assert names >= {"NEGOTIATE", "REDUCE", "ALLREDUCE", "ALLTOALL"}, f"rank {rank}: {names}"


@pytest.mark.deep
def test_uneven_hosts_started_from_a_third(gloo: None, cluster: Cluster) -> None:
    flags = ["--verbose", "-np", "3", "-H", "hosta:2,hostb:1"]
    job = cluster.start("hostc", *flags, sys.executable, TRAIN, "report")
    ranks = report_of(job)
    assert "mydistrun: rendezvous listens on 10.61.1.3:" in job.output
    assert [row["host"] for row in ranks] == ["hosta", "hosta", "hostb"]
    assert [row["place"] for row in ranks] == [[0, 3, 0, 2], [1, 3, 1, 2], [2, 3, 0, 1]]
    assert [row["cross"] for row in ranks] == [[0, 2], [0, 1], [1, 2]]
    assert {tuple(pair) for pair in ranks[2]["connections"]} == {("10.61.1.2", "10.61.1.1")}


@pytest.mark.deep
def test_network_interfaces_picks_one(gloo: None, cluster: Cluster) -> None:
    # The first that exists wins, on every host by itself.
    flags = ["--network-interfaces", "wlan7,other0,data0", "-H", "hosta:1,hostb:1", "--verbose"]
    job = cluster.start("hosta", *flags, sys.executable, TRAIN, "report")
    ranks = report_of(job)
    assert "mydistrun: rendezvous listens on 10.61.2.1:" in job.output
    assert ranks[0]["listening"] == ["10.61.2.1"]
    assert {tuple(pair) for pair in ranks[0]["connections"]} >= {("10.61.2.1", "10.61.2.2")}
    assert {pair[0] for pair in ranks[1]["connections"]} == {"10.61.2.2"}


def test_an_interface_that_another_host_lacks(gloo: None, cluster: Cluster) -> None:
    cluster.hosts["hostb"].ip("link", "delete", "other0")
    flags = ["--network-interfaces", "other0", "-H", "hosta:1,hostb:1"]
    # Routed by way of the network that is left, so that the rank gets as far as choosing.
    route = ["route", "add", "10.61.2.0/24", "via", cluster.hosts["hosta"].data_address]
    cluster.hosts["hostb"].ip(*route)
    job = cluster.start("hosta", *flags, sys.executable, TRAIN, "report")
    wanted = "MYDIST_NETWORK_INTERFACES is 'other0', but this host has no such interface"
    job.wait_for(wanted)
    ended = job.finish(STOP_SECONDS)
    assert ended.code == 1
    assert "mydistrun: rank 1 on host hostb (pid " in ended.output
    (line,) = [
        line for line in ended.output.splitlines() if line.startswith("    | ") and wanted in line
    ]
    assert "it has: lo (127.0.0.1), docker0 (172.17.0.1), data0 (10.61.1.2)" in line


@pytest.mark.deep
def test_mpirun_over_the_same_ssh_and_interface(mpi: None, cluster: Cluster) -> None:
    flags = ["--mpi", "--network-interfaces", "wlan7,data0", "-np", "3", "-H", "hosta:2,hostb:1"]
    ranks = report_of(cluster.start("hosta", *flags, sys.executable, TRAIN, "report"))
    assert [row["host"] for row in ranks] == ["hosta", "hosta", "hostb"]
    assert [row["place"] for row in ranks] == [[0, 3, 0, 2], [1, 3, 1, 2], [2, 3, 0, 1]]
    # Open MPI's daemon on hostb is spoken to over loopback.
    between = {tuple(pair) for pair in ranks[2]["connections"]} - {("127.0.0.1", "127.0.0.1")}
    assert between == {("10.61.1.2", "10.61.1.1")}
