"""Something on another host breaks: who is blamed, how soon, and that nothing is left anywhere.

That nothing is left is also checked at the end of each test by its fixture.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

import pytest
from multiproc.job import job_environment

from multihost.cluster import Cluster
from multihost.namespace import signal_process, wait_gone
from multihost.running_job import STOP_SECONDS, RunningJob

TRAIN = str(Path(__file__).parent / "workers" / "train.py")
WAIT = ["sh", "-c", 'echo "READY $$"; exec sleep 600']


def ready_pids(job: RunningJob, count: int) -> list[int]:
    """The pids of all ranks, by rank, once each has said that it works."""
    lines = job.wait_for("READY ", count)
    by_rank = {int(line[1 : line.index("]")]): int(line.split()[-1]) for line in lines}
    return [by_rank[rank] for rank in range(count)]


def report_of(output: str) -> str:
    """What mydistrun said at the end."""
    _, found, report = ("\n" + output).partition("\nmydistrun: rank ")
    assert found, output
    return "mydistrun: rank " + report


def test_the_first_failure_of_a_remote_rank(gloo: None, cluster: Cluster) -> None:
    job = cluster.start("hosta", "-H", "hosta:2,hostb:1", sys.executable, TRAIN, "fail")
    ended = job.finish()
    report = report_of(ended.output)
    assert ended.code == 7, ended.output
    assert report.startswith("mydistrun: rank 2 on host hostb (pid ")
    assert ") exited with code 7 after " in report.splitlines()[0]
    assert "    | the disk is full" in report
    cluster.wait_empty(STOP_SECONDS)


def test_kill_9_of_a_remote_rank(gloo: None, cluster: Cluster) -> None:
    job = cluster.start("hosta", "-H", "hosta:2,hostb:1", sys.executable, TRAIN, "forever")
    victim = ready_pids(job, 3)[2]
    assert victim in cluster.hosts["hostb"].pids()
    signal_process(victim, signal.SIGKILL)
    ended = job.finish(STOP_SECONDS)
    assert ended.code == 137, ended.output
    first = report_of(ended.output).splitlines()[0]
    words = f"rank 2 on host hostb (pid {victim}) was killed by SIGKILL (signal 9)"
    assert first.startswith(f"mydistrun: {words} after ")
    # A survivor hears of the loss from the network or, sooner, from the other survivor.
    errors = [line for line in ended.output.splitlines() if ">:mydist." in line]
    assert len(errors) == 2, ended.output
    assert any(">:mydist.PeerLostError: " in line for line in errors), ended.output
    for rank in (0, 1):
        (own,) = [line for line in errors if line.startswith(f"[{rank}]<stderr>:")]
        assert f"rank 2 (host hostb, pid {victim})" in own, ended.output
    cluster.wait_empty(STOP_SECONDS)


@pytest.mark.parametrize("end", ["near", "far"])
def test_the_ssh_connection_is_cut(cluster: Cluster, end: str) -> None:
    job = cluster.start("hosta", "-H", "hosta:1,hostb:1", *WAIT)
    pids = ready_pids(job, 2)
    assert pids[1] in cluster.hosts["hostb"].pids()
    host, words = ("hosta", "ssh -T") if end == "near" else ("hostb", "sshd: root@notty")
    (victim,) = cluster.hosts[host].pids_running(words)
    signal_process(victim, signal.SIGKILL)
    ended = job.finish(STOP_SECONDS)
    report = report_of(ended.output)
    assert ended.code == 1
    assert report.startswith(f"mydistrun: rank 1 on host hostb (pid {pids[1]}) was lost: ")
    cause = "ssh was killed by signal 9" if end == "near" else "ssh exited with 255: "
    assert cause in report.splitlines()[0]
    assert "stopped by mydistrun: rank 0" in report
    cluster.wait_empty(STOP_SECONDS)


@pytest.mark.deep
def test_the_network_falls_silent(gloo: None, cluster: Cluster) -> None:
    host_timeout = 3.0
    flags = ["--host-timeout", f"{host_timeout:g}", "-H", "hosta:1,hostb:1"]
    job = cluster.start("hosta", *flags, sys.executable, TRAIN, "forever")
    pids = ready_pids(job, 2)
    hosta, hostb = cluster.hosts["hosta"], cluster.hosts["hostb"]
    hostb.ip("link", "set", "data0", "down")
    cut_at = time.monotonic()
    # Both ranks now wait in an allreduce; Gloo alone would let them wait for ever.
    ended = job.finish(host_timeout + STOP_SECONDS)
    report = report_of(ended.output)
    assert ended.code == 1
    assert report.startswith(
        f"mydistrun: rank 1 on host hostb (pid {pids[1]}) was lost: ssh exited"
    )
    assert "not responding" in report.splitlines()[0]
    assert "stopped by mydistrun: rank 0" in report
    hosta.wait_empty(STOP_SECONDS)
    # The agent on the other side waits six times as long. Its sshd still holds a dead connection,
    # which is the server's own affair.
    assert hostb.pids_running("train.py") == [pids[1]]
    wait_gone([pids[1]], 6 * host_timeout + STOP_SECONDS - (time.monotonic() - cut_at))
    for server in hostb.pids_running("sshd: "):
        signal_process(server, signal.SIGKILL)


def test_ranks_on_both_sides_of_a_cut_end_by_their_heartbeats(gloo: None, cluster: Cluster) -> None:
    flags = ["--host-timeout", "60", "--heartbeat-timeout-seconds", "2", "-H", "hosta:1,hostb:1"]
    job = cluster.start("hosta", *flags, sys.executable, TRAIN, "forever")
    pids = ready_pids(job, 2)
    hosta, hostb = cluster.hosts["hosta"], cluster.hosts["hostb"]
    time.sleep(0.5)  # They know each other's heartbeats.
    hostb.ip("link", "set", "data0", "down")
    cut_at = time.monotonic()
    who = f"rank 1 (host hostb, pid {pids[1]})"
    (line,) = job.wait_for(">:mydist.PeerLostError: ", 1)
    assert 1 < time.monotonic() - cut_at < 4
    assert line.startswith("[0]<stderr>:mydist.PeerLostError: allreduce 'step': " + who), line
    assert "has given no sign of life for 2.0 s" in line, line
    # What the other one says is lost; that it ends is seen.
    wait_gone([pids[1]], 10 - (time.monotonic() - cut_at))
    job.kill()
    hosta.wait_empty(STOP_SECONDS)
    for server in hostb.pids_running("sshd: ") + hostb.pids_running("mydist"):
        signal_process(server, signal.SIGKILL)


def test_mydistrun_itself_is_killed(cluster: Cluster) -> None:
    job = cluster.start("hosta", "-H", "hosta:1,hostb:1,hostc:1", *WAIT)
    ready_pids(job, 3)
    signal_process(job.popen.pid, signal.SIGKILL)
    cluster.wait_empty(STOP_SECONDS)


def start_by_variables(cluster: Cluster, hosts: list[str]) -> list[RunningJob]:
    """A job of one rank for each entry, as torchrun and other launchers start ranks."""
    address = cluster.hosts[hosts[0]].data_address
    jobs = []
    for rank, host in enumerate(hosts):
        variables = {"RANK": str(rank), "WORLD_SIZE": str(len(hosts))}
        variables |= {"MASTER_ADDR": address, "MASTER_PORT": "29517"}
        words = cluster.hosts[host].command(sys.executable, TRAIN, "forever")
        jobs.append(RunningJob(words, cluster.folder, job_environment(variables)))
    cluster.jobs += jobs
    return jobs


def test_a_rank_tells_other_hosts_which_signal_ended_a_rank_of_its_host(
    gloo: None, cluster: Cluster
) -> None:
    jobs = start_by_variables(cluster, ["hosta", "hosta", "hostb", "hostb"])
    pids = [int(job.wait_for("READY ")[0].split()[-1]) for job in jobs]
    signal_process(pids[3], signal.SIGKILL)
    for job in jobs[:3]:
        (error,) = job.wait_for("mydist.PeerLostError: ", 1, STOP_SECONDS)
        assert error.startswith("mydist.PeerLostError: allreduce 'step': "), error
        assert f"rank 3 (host hostb, pid {pids[3]})" in error, error
        last = "SIGKILL (signal 9) ended rank 3. The last collective of rank 3 was allreduce "
        assert last in error, error
    for job in jobs:
        job.kill()
