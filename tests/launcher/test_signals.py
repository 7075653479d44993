"""Signals to mydistrun that do not end it reach the ranks, however these were started."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from running_job import SECONDS, Mydistrun, numbers

# Ends with 0 at SIGUSR2. Rank 0 handles SIGTSTP and SIGQUIT, rank 1 does not.
SHOWS = """
import os, signal, sys
rank = os.environ.get("RANK", os.environ.get("OMPI_COMM_WORLD_RANK"))
def show(number, frame):
    print("got", signal.Signals(number).name)
for number in (signal.SIGUSR1, signal.SIGWINCH, signal.SIGCONT):
    signal.signal(number, show)
if rank == "0":
    signal.signal(signal.SIGTSTP, show)
    signal.signal(signal.SIGQUIT, show)
signal.signal(signal.SIGUSR2, lambda number, frame: sys.exit(0))
print(f"rank {rank} pid", os.getpid())
while True:
    signal.pause()
"""
QUIT_LINE = "mydistrun: got SIGQUIT; the ranks that handle it print their stacks and go on"
WAYS = {
    "local": ["-np", "2"],
    "ssh": ["--ssh-local", "-np", "2", "-H", "127.0.0.2:2"],
    "mpi": ["--mpi", "-np", "2"],
}


def wait_stopped(pid: int) -> None:
    deadline = time.monotonic() + SECONDS
    while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline, f"process {pid} is not stopped"
        time.sleep(0.01)


@pytest.mark.usefixtures("fake_ssh")
@pytest.mark.parametrize("way", WAYS)
def test_signals_reach_the_ranks(mydistrun: Mydistrun, way: str) -> None:
    job = mydistrun.start(*WAYS[way], mydistrun.script(SHOWS))
    pids = numbers(sorted(job.read_until(b"pid", 2)))
    for signum in (signal.SIGUSR1, signal.SIGWINCH):
        job.popen.send_signal(signum)
        job.read_until(f"got {signum.name}".encode(), 2)
    job.popen.send_signal(signal.SIGQUIT)  # It would end a rank that does not handle it.
    job.read_until(b"got SIGQUIT")
    if way != "mpi":  # A scheduler may send it to the guard and to ssh, too.
        for pid in set(job.children()) - set(pids):
            os.kill(pid, signal.SIGUSR1)
    job.popen.send_signal(signal.SIGTSTP)
    wait_stopped(job.popen.pid)
    wait_stopped(pids[1])
    job.popen.send_signal(signal.SIGCONT)
    job.read_until(b"got SIGCONT", 2 if way == "mpi" else 1)
    if way != "mpi":  # mpirun sends SIGSTOP to all.
        job.read_until(b"got SIGTSTP")
    job.popen.send_signal(signal.SIGUSR2)
    code, err = job.finish()
    assert code == 0
    assert way == "mpi" or err == f"{QUIT_LINE}\n"


def test_sigquit_reaches_a_rank_behind_a_shell(mydistrun: Mydistrun) -> None:
    script = mydistrun.script(SHOWS)
    job = mydistrun.start("-np", "1", "sh", "-c", f"RANK=0 '{sys.executable}' '{script}'; exit $?")
    (pid,) = numbers(job.read_until(b"pid"))
    job.popen.send_signal(signal.SIGQUIT)
    job.read_until(b"got SIGQUIT")
    os.kill(pid, signal.SIGUSR2)
    assert job.finish() == (0, f"{QUIT_LINE}\n")


def test_a_signal_that_ends_a_rank_is_in_the_report(mydistrun: Mydistrun) -> None:
    job = mydistrun.start("-np", "2", "sh", "-c", 'echo "pid $$"; exec sleep 600')
    job.read_until(b"pid", 2)
    job.popen.send_signal(signal.SIGUSR1)
    code, err = job.finish()
    assert code == 128 + signal.SIGUSR1
    assert " was killed by SIGUSR1 (signal 10) after " in err
