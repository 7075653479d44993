"""The test environment itself: whatever happens in a test, nothing of it stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from multihost.cluster import make_cluster, remove_abandoned
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


def test_what_a_killed_test_run_left_is_removed_by_the_next(
    several_hosts: None, tmp_path: Path
) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from multihost.cluster import make_cluster\n"
        "with make_cluster(Path(sys.argv[1])):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    tests = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join([tests, *filter(None, sys.path)])
    command = [sys.executable, "-c", code, str(tmp_path)]
    killed = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path})
    assert killed.wait(30) == -9
    name = f"mydist-test-{killed.pid}-hosta"
    assert name in call("ip", "netns", "list")
    (sshd,) = call("ip", "netns", "pids", name).split()
    remove_abandoned()
    wait_gone([int(sshd)], 0.0)
    assert f"mydist-test-{killed.pid}-" not in call("ip", "netns", "list")
