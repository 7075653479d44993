"""The test environment itself: whatever happens in a test, nothing of it stays."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from multihost.cluster import make_cluster
from multihost.namespace import call, wait_gone


def test_nothing_stays_after_a_failing_test(several_hosts: None, tmp_path: Path) -> None:
    pids: list[int] = []
    with pytest.raises(ZeroDivisionError), make_cluster(tmp_path) as cluster:
        job = cluster.start("hosta", "-H", "hosta:1,hostb:1", "sh", "-c", "echo up; exec sleep 600")
        job.wait_for("up", 2)
        for host in cluster.hosts.values():
            assert host.sshd is not None
            pids += [host.sshd.pid, *host.pids()]
        raise ZeroDivisionError
    assert len(pids) > 3 + 2
    wait_gone(pids, 0.0)
    assert f"mydist-test-{os.getpid()}-" not in call("ip", "netns", "list")
