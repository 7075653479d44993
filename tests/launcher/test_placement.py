"""Hosts are parsed as written, and ranks placed by the rules, for every layout of a range."""

from __future__ import annotations

import itertools
import socket
import time
from pathlib import Path

import pytest

from mydist.launcher.children import children_of
from mydist.launcher.hosts import (
    Host,
    format_entry,
    parse_host_list,
    parse_hostfile,
    parse_server_hosts,
)
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.placement import place_ranks
from mydist.launcher.platforms.table import platform_for

GOOD = [
    ("a", [Host("a", 1)]),
    ("a:4,b:2", [Host("a", 4), Host("b", 2)]),
    ("under_score-1.example.com:3", [Host("under_score-1.example.com", 3)]),
    ("[fe80::1]:2,[::1]", [Host("fe80::1", 2), Host("::1", 1)]),
    ("[fe80::1%eth0]:2", [Host("fe80::1%eth0", 2)]),
    ("me@host:2,me@[::2]:1", [Host("me@host", 2), Host("me@::2", 1)]),
    ("10.0.0.1:8, 10.0.0.2:8", [Host("10.0.0.1", 8), Host("10.0.0.2", 8)]),
]


@pytest.mark.parametrize(("text", "hosts"), GOOD)
def test_host_list(text: str, hosts: list[Host]) -> None:
    assert list(parse_host_list(text)) == hosts
    assert parse_host_list(",".join(format_entry(host) for host in hosts)) == tuple(hosts)


def test_hostfile(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("# cluster\na slots=4  # first\n\n[::1]:2\nc\n")
    assert parse_hostfile(str(file)) == (Host("a", 4), Host("::1", 2), Host("c", 1))


def test_what_is_local() -> None:
    local = ["localhost", "127.0.0.1", "127.3.2.1", "::1", socket.gethostname()]
    remote = ["10.0.0.1", "example.com", "fe80::1", "me@localhost", "localhost.example.com"]
    assert [name for name in local + remote if Host(name, 1).is_local()] == local


@pytest.mark.parametrize("slots", list(itertools.product([1, 2, 3, 5], repeat=3)))
def test_placement_properties(slots: tuple[int, ...]) -> None:
    hosts = tuple(Host(f"h{index}", count) for index, count in enumerate(slots))
    for size in range(1, sum(slots) + 1):
        ranks = place_ranks(hosts, size)
        assert [p.rank for p in ranks] == list(range(size))
        assert all(p.size == size for p in ranks)
        for node, (host, group) in enumerate(itertools.groupby(ranks, key=lambda p: p.host)):
            members = list(group)
            assert host == hosts[node]
            assert len(members) <= host.slots
            assert [p.local_rank for p in members] == list(range(len(members)))
            assert {p.local_size for p in members} == {len(members)}
            assert {p.node_rank for p in members} == {node}
        for local_rank in range(max(slots)):
            column = [p for p in ranks if p.local_rank == local_rank]
            assert [p.cross_rank for p in column] == list(range(len(column)))
            assert all(p.cross_size == len(column) for p in column)


def test_eight_thousand_hosts_are_planned_at_once() -> None:
    began = time.process_time()
    text = ",".join(f"user@host{index}.example.com" for index in range(8000))
    hosts = parse_host_list(text)
    assert parse_server_hosts(text, hosts) == hosts
    spec = JobSpec(("train.py",), len(hosts), hosts)
    children = children_of(spec)
    environment = {f"PYTHON{index}": "x" for index in range(50)}
    lines = platform_for(spec, children.ranks).describe(spec, environment, children)
    assert sum(line.startswith("  rank ") for line in lines) == 8000
    # A second per thousand hosts, were each compared with all others.
    assert time.process_time() - began < 1
