"""How hosts are reached over real ssh, and what is said about those that are not."""

from __future__ import annotations

import os
import re
import sys
import time

import server_stand_in
from multiproc.job import job_environment

from multihost.cluster import Cluster
from multihost.namespace import SSH_PORT


def test_values_arrive_byte_exact(cluster: Cluster) -> None:
    odd = 'it\'s $HOME `id` "x"\n(next) \\ ü * ; # \x7f '
    shell = 'printf %s "$ODD" > "odd.$RANK"; printf %s "$NCCL_ODD" > "nccl.$RANK"'
    shell += '; printf %s "$1" > "argument.$RANK"; echo "$(hostname) [$SECRET_KEY]"'
    env = {"NCCL_ODD": odd, "SECRET_KEY": "must stay here"}
    hosts = ["-H", "hosta:1,hostb:1,hostc:1"]
    job = cluster.start("hosta", *hosts, "-x", f"ODD={odd}", "sh", "-c", shell, "sh", odd, env=env)
    ended = job.finish().expect_success()
    assert sorted(ended.output.splitlines()) == [
        "[0]<stdout>:hosta [must stay here]",  # a local rank is an ordinary child
        "[1]<stdout>:hostb []",
        "[2]<stdout>:hostc []",
    ]
    for name in ("odd", "nccl", "argument"):
        for rank in range(3):
            arrived = (cluster.folder / f"{name}.{rank}").read_bytes()
            assert arrived == odd.encode(), f"{name} of rank {rank}"


def test_each_unreachable_host_is_named_with_its_cause(cluster: Cluster) -> None:
    # Packets to hostb leave and vanish, as behind a firewall; nobody listens on hostc.
    hostb, hostc = cluster.hosts["hostb"], cluster.hosts["hostc"]
    nobody = ["lladdr", "02:00:00:00:00:99", "dev", "data0", "nud", "permanent"]
    cluster.hosts["hosta"].ip("neighbour", "replace", hostb.data_address, *nobody)
    assert hostc.sshd is not None
    hostc.sshd.kill()
    hostc.sshd.wait()
    started = time.monotonic()
    hosts = ["-H", "hosta:1,hostb:1,hostc:1,hostx:1"]
    ended = cluster.start("hosta", "--start-timeout", "2", *hosts, "touch", "ran").finish()
    assert time.monotonic() - started < 15, "--start-timeout is 2 s, and 30 s by default"
    assert ended.code == 1
    assert not (cluster.folder / "ran").exists(), "a rank was started"
    lines = ended.output.splitlines()
    assert [line.partition("': ")[0] for line in lines] == [
        f"mydistrun: host '{name}" for name in ("hostb", "hostc", "hostx")
    ]
    # Whether ssh or mydistrun looks at its clock first is a matter of milliseconds.
    assert "no answer within 2 s" in lines[0] or "timed out" in lines[0]
    assert f"connect to host hostc port {SSH_PORT}: Connection refused" in lines[1]
    assert "Could not resolve hostname hostx" in lines[2]


def test_a_wrong_host_key_and_a_wrong_user_key_are_causes(cluster: Cluster) -> None:
    known = (cluster.folder / "known").read_text()
    key_b = (cluster.folder / "hostb.pub").read_text().split()[1]
    key_c = (cluster.folder / "hostc.pub").read_text().split()[1]
    (cluster.folder / "changed").write_text(known.replace(key_b, key_c))
    hosts = ["-H", "hosta:1,hostb:1,hostc:1"]
    ended = cluster.start("hosta", *hosts, "true", ssh=cluster.ssh_flags(known="changed")).finish()
    assert ended.code == 1
    (line,) = ended.output.splitlines()
    assert line.startswith("mydistrun: host 'hostb': ssh exited with 255: ")
    assert line.endswith("Host key verification failed.")

    ended = cluster.start("hosta", *hosts, "true", ssh=cluster.ssh_flags(key="stranger")).finish()
    assert ended.code == 1
    lines = ended.output.splitlines()
    assert len(lines) == 2
    for name, line in zip(("hostb", "hostc"), lines, strict=True):
        assert line.startswith(f"mydistrun: host '{name}': ssh exited with 255: ")
        assert "Permission denied (publickey)" in line


def test_an_unknown_interface_is_an_error_that_lists_the_others(cluster: Cluster) -> None:
    flags = ["--network-interfaces", "wlan7", "-H", "hosta:1,hostb:1"]
    ended = cluster.start("hosta", *flags, "touch", "ran").finish()
    assert ended.code == 1
    assert not (cluster.folder / "ran").exists(), "a rank was started"
    (line,) = ended.output.splitlines()
    assert line.startswith("mydistrun: --network-interfaces wlan7: this machine has no such")
    for name in ("lo", "docker0", "data0", "other0"):
        assert name in line.partition("; it has ")[2].split(", ")


def test_servers_listen_where_the_other_hosts_reach_them(cluster: Cluster) -> None:
    # The agents need the same installation; ssh gives them the tests' own.
    place = server_stand_in.install(cluster.folder)
    python = cluster.folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={place}:$PYTHONPATH exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    env = {"PYTHONPATH": os.pathsep.join([str(place), job_environment()["PYTHONPATH"]])}
    hosts = ["-H", "hosta:1", "--server-hosts", "hostb,hosta", "--remote-python", str(python)]
    shell = 'echo "$MYDIST_SERVER_ADDRESSES"'
    for flags, network in ([], "10.61.1"), (["--network-interfaces", "x0,other0"], "10.61.2"):
        ended = cluster.start("hosta", *hosts, *flags, "sh", "-c", shell, env=env).finish()
        output = ended.expect_success().output
        # hostb calls itself 127.0.1.1.
        found = re.search(r"\[0\]<stdout>:0=(\S+):4000/pid-\d+,1=(\S+):4001/pid-\d+\n", output)
        assert found is not None, output
        assert found.groups() == (f"{network}.2", f"{network}.1")
        assert "[s0]<stdout>:32 " in output
