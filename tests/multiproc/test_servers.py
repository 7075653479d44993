"""Servers and workers of tables that fail, stop, leave or are slow: what the others get, and when.

With mydist-server as a program (`mydistrun --servers`) and with threads of the first ranks.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from deep import deep

from multiproc.job import WORKERS
from multiproc.watched_job import WatchedJob, watched_job

# The contract is one second; a machine may be busy.
SOON_S = 3.0
WARNING_S, SHUTDOWN_S = 0.5, 3.0
WORKER = str(WORKERS / "server_faults.py")
LAUNCHERS = {
    "mydistrun": (*(sys.executable, "-m", "mydist.launcher"), "-np"),
    "mpi": (*(sys.executable, "-m", "mydist.launcher"), "--mpi", "-np"),
    "torchrun": (
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        "--nproc-per-node",
    ),
}


@contextmanager
def server_job(
    scenario: str,
    folder: Path,
    np: int = 3,
    servers: int = 0,
    memory: bool = True,
    launcher: str = "mydistrun",
    **env: str,
) -> Iterator[WatchedJob]:
    """`servers`: programs; 0: threads of the first two ranks."""
    own = {"MYDIST_SERVERS": "2", "MYDIST_SHARED_MEMORY": str(int(memory)), **env}
    flags = ("--servers", str(servers)) if servers else ()
    python = () if launcher == "torchrun" else (sys.executable,)
    command = (*LAUNCHERS[launcher], str(np), *flags, *python, WORKER, scenario, str(folder))
    with watched_job(command, own, folder) as job:
        yield job


def pid_of_server(job: WatchedJob, number: int) -> int:
    pid: int = job.row("ready0")["servers"][number]
    return pid


def await_state(pid: int, state: str) -> None:
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in state:
        time.sleep(0.005)


def stop(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    await_state(pid, "T")


def pids_of_ranks(job: WatchedJob, np: int = 3) -> list[int]:
    return [job.row(f"ready{rank}")["pid"] for rank in range(np)]


def expect_lost(row: dict[str, Any], killed: float, error: str, *parts: str) -> None:
    """What a rank raised, how soon, and what it says."""
    assert row["error"] == error, row
    assert row["at"] - killed < SOON_S, (row, killed)
    for part in parts:
        assert part in row["text"], row


@pytest.mark.parametrize(
    ("launcher", "np", "servers", "memory"),
    [
        ("mydistrun", 3, 2, True),
        ("torchrun", 2, 0, False),
        deep("mydistrun", 3, 2, False),
        deep("mydistrun", 3, 0, True),
        deep("mydistrun", 3, 0, False),
        deep("torchrun", 3, 0, True),
        deep("mpi", 2, 0, True),
        deep("mpi", 2, 0, False),
    ],
)
def test_what_is_to_do_no_harm_does_none(
    launcher: str, np: int, servers: int, memory: bool, tmp_path: Path
) -> None:
    if launcher == "mpi" and shutil.which("mpirun") is None:
        pytest.skip("mpirun is not on PATH")
    with server_job("unharmed", tmp_path, np, servers, memory, launcher) as job:
        assert job.process.wait(60) == 0, job.output()
        output = job.output()
        over = [job.row(f"over{rank}")["at"] for rank in range(np)]
        left = [job.row(f"learned{rank}")["left"] for rank in range(np)]
    assert over[0] > max(over[1:]) and left[0] < min(over[1:])  # Its process had a server.
    assert "Traceback" not in output and "without a goodbye" not in output, output
    turned_away = re.findall("the first bytes are not those of mydist's parameter server", output)
    assert len(turned_away) == 2, output
    assert memory == (" broke and has been made again" not in output), output


@pytest.mark.parametrize(
    ("servers", "memory"), [(2, True), deep(2, False), deep(1, False), deep(3, True)]
)
def test_a_server_is_killed(servers: int, memory: bool, tmp_path: Path) -> None:
    with server_job("server_lost", tmp_path, servers=servers, memory=memory) as job:
        pids_of_ranks(job)
        last = servers - 1
        pid = pid_of_server(job, last)
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        job.tell("killed")
        dense = job.row("ready0")["pieces"][last]
        for rank in range(3):
            learned = job.row(f"learned{rank}")
            for call, name in (("first", "fc"), ("ssp", "emb"), ("later", "rows")):
                server = f"server {last} (host localhost, pid {pid})"
                who = f" of table '{name}': {server} has died; it held "
                held = f"{dense + 1} of {16 + servers} pieces of tables fc, emb, rows."
                expect_lost(learned[call], killed, "PeerLostError", who + held)
                failure = learned[call]["failure"]
                assert failure["pid"] == pid and failure["host"] == "localhost", failure
                assert failure["finding"] == "dead", failure
        assert job.process.wait(30) == 137, job.output()
        report = job.output().partition("mydistrun: ")[2]
        cause = f"server {last} on host localhost (pid {pid}) was killed by SIGKILL (signal 9)"
        assert report.startswith(cause), job.output()


@pytest.mark.parametrize(
    ("servers", "memory"),
    [(1, False), deep(1, True), deep(2, False), deep(3, True), deep(0, True), deep(0, False)],
)
def test_a_worker_is_killed(servers: int, memory: bool, tmp_path: Path) -> None:
    with server_job("worker_lost", tmp_path, servers=servers, memory=memory) as job:
        pid = pids_of_ranks(job)[2]
        killed = time.monotonic()
        os.kill(pid, signal.SIGKILL)
        for rank in range(2):
            learned = job.row(f"learned{rank}")
            for call in ("sync", "later"):
                who = f"rank 2 (host localhost, pid {pid}) has died"
                expect_lost(learned[call], killed, "PeerLostError", "of table 'sync': ", who)
                failure = learned[call]["failure"]
                assert failure["ranks"] == [2] and failure["pid"] == pid, failure
            for kind in ("backup", "ssp", "async"):
                assert learned[kind]["error"] == "", learned
        job.tell("enough")
        assert job.process.wait(30) == 137, job.output()
        output = job.output()
        assert output.partition("mydistrun: ")[2].startswith("rank 2 "), output
        told = re.findall(rf"server \d: rank 2 \(host localhost, pid {pid}\) has died", output)
        assert len(told) == (servers or 2), output


@pytest.mark.parametrize("memory", [False, deep(True)])
def test_a_server_in_a_rank_goes_with_the_rank(memory: bool, tmp_path: Path) -> None:
    with server_job("failing", tmp_path, memory=memory) as job:
        assert job.process.wait(60) == 1, job.output()
        for rank in (1, 2):
            lost = job.row(f"learned{rank}")["lost"]
            assert lost["error"] in ("AbortedError", "PeerLostError"), lost
            assert "rank 0 (host localhost, pid " in lost["text"] or "server 0 (" in lost["text"]
        report = job.output().partition("mydistrun: ")[2]
        assert report.startswith("rank 0 on host localhost "), job.output()
        assert "RuntimeError: broken on purpose" in report, job.output()


@pytest.mark.parametrize(
    ("servers", "memory"), [(3, True), deep(1, True), deep(2, True), deep(1, False)]
)
def test_what_is_slow_or_stopped_is_named(servers: int, memory: bool, tmp_path: Path) -> None:
    env = {
        "MYDIST_STALL_WARNING_SECONDS": str(WARNING_S),
        "MYDIST_STALL_SHUTDOWN_SECONDS": str(SHUTDOWN_S),
        "MYDIST_PS_PIECE_KB": "64",  # So each server has pieces of each table.
    }
    with server_job("stalled", tmp_path, np=2, servers=servers, memory=memory, **env) as job:
        # A table that one rank has not declared yet.
        job.await_output(re.compile(r"'ps\.table\.large[^']*' waits for rank 1 "), 20)
        job.tell("declared by one")
        # A slow worker: a line, and no error.
        for kind in (r"ssp\(1\)", "sync"):
            table = kind.partition("\\")[0]
            clocks = rf"rank 1 at clock \d waits for rank 0 at \d \({kind}\)"
            line = rf"of table '{table}' has waited .*It answers; table '{table}': {clocks}\."
            if table == "ssp":
                job.await_output(re.compile(line), 20)
        job.tell("slow enough")
        pids_of_ranks(job, 2)
        # A server that goes on before the end.
        last = servers - 1
        pid = pid_of_server(job, last)
        who = f"server {last} (host localhost, pid {pid})"
        stop(pid)
        job.tell("stopped")
        silent = rf"waited for {re.escape(who)} for .* It gives no answer"
        job.await_output(re.compile(silent), 20)
        os.kill(pid, signal.SIGCONT)
        for rank in range(2):
            rows = job.row(f"short{rank}")
            assert [row["error"] for row in rows.values()] == [""] * 4, rows
        # One that does not.
        stop(pid)
        job.tell("stopped again")
        for rank in range(2):
            learned = job.row(f"learned{rank}")
            assert SHUTDOWN_S <= learned["seconds"] < SHUTDOWN_S + SOON_S, learned
            for kind in ("async", "ssp", "sync"):
                error = learned[kind]
                assert error["error"] == "CollectiveTimeoutError", learned
                assert f"of table 'large {kind}'" in error["text"] and who in error["text"], learned
                assert "It gives no answer: it is stopped" in error["text"], learned
                assert error["failure"]["pid"] == pid, learned
                assert error["failure"]["finding"] == "silent", learned
        os.kill(pid, signal.SIGCONT)
        job.tell("enough")
        assert job.process.wait(30) == 0, job.output()


@pytest.mark.parametrize("memory", [True, deep(False)])
def test_a_worker_that_is_far_ahead_takes_no_memory_of_the_server(
    memory: bool, tmp_path: Path
) -> None:
    env = {"MYDIST_STALL_WARNING_SECONDS": str(WARNING_S)}
    with server_job("far_ahead", tmp_path, np=2, servers=1, memory=memory, **env) as job:
        pids_of_ranks(job, 2)
        pid = pid_of_server(job, 0)
        before = own_mib(pid)
        job.row("ahead")
        clocks = r"rank 0 at clock 3 waits for rank 1 at 1 \(sync\)"
        line = rf"push of table 'ahead' has waited .*It answers; table 'ahead': {clocks}\."
        job.await_output(re.compile(line), 20)
        grown = own_mib(pid) - before
        job.tell("enough")
        assert job.process.wait(60) == 0, job.output()
        rows = [job.row(f"learned{rank}") for rank in range(2)]
    assert [row["value"] for row in rows] == [[33.0]] * 2
    assert rows[0]["waited"] > WARNING_S, rows
    # Two gradients of 4 MiB, of 32; and what is on its way over a socket.
    assert grown < 20, grown


def own_mib(pid: int) -> float:
    """Memory of the process that it shares with no other."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) / 1024


@pytest.mark.parametrize("memory", [deep(True), deep(False)])
def test_a_slow_server_takes_no_memory_of_its_workers(memory: bool, tmp_path: Path) -> None:
    with server_job("slow_server", tmp_path, np=1, servers=1, memory=memory) as job:
        pids_of_ranks(job, 1)
        pid = pid_of_server(job, 0)
        stop(pid)
        job.tell("stopped")
        while job.row_if_there("learned0") is None:
            time.sleep(0.1)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.1)
            os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
        learned = job.row("learned0")
        job.tell("enough")
        assert job.process.wait(30) == 0, job.output()
    assert learned["value"] == 17
    assert learned["grown"] < 40, learned  # Twice the credits, and 1 GiB is on its way.
