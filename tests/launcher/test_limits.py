"""Limits of the system: each is one line that names it, and nothing is left behind."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
from control_group import ControlGroup, control_group
from running_job import Mydistrun
from test_rendezvous import HELLO_NONCE, JOB, Service

from mydist.job import rendezvous_wire as wire

LAUNCHER = (sys.executable, "-m", "mydist.launcher")
PROCESSES = "the limit of processes is reached, raise `ulimit -u` or the pids cgroup"


def run(mydistrun: Mydistrun, command: list[str]) -> tuple[int, str]:
    """The exit code and the error stream of a command that is to end soon."""
    began = time.monotonic()
    done = subprocess.run(
        command, env=mydistrun.env, capture_output=True, text=True, timeout=30, check=False
    )
    assert time.monotonic() - began < 10
    return done.returncode, done.stderr


# Too few to listen, for the guard, for some of the ranks. With fewer Python itself cannot run.
@pytest.mark.parametrize("files", [10, 12, 24])
def test_a_launcher_without_descriptors_names_the_limit(mydistrun: Mydistrun, files: int) -> None:
    shell = f'ulimit -n {files}; exec "$@"'
    job = [*LAUNCHER, "-np", "8", "sleep", "60"]
    code, err = run(mydistrun, ["sh", "-c", shell, "sh", *job])
    assert code == 1, err
    (line,) = err.splitlines()
    assert line.startswith("mydistrun: cannot start "), err
    assert line.endswith("; each local rank needs 3 descriptors, raise `ulimit -n`"), err


@pytest.fixture
def few_processes() -> Iterator[ControlGroup]:
    with control_group("pids.max", "1") as group:
        yield group


# For each: what cannot be started. mydistrun has three threads, a guard, and then its ranks.
@pytest.mark.parametrize("most", [1, 2, 3, 4, 5])
def test_too_many_processes_name_the_limit(
    mydistrun: Mydistrun, few_processes: ControlGroup, most: int
) -> None:
    few_processes.set_limit("pids.max", str(most))
    code, err = run(mydistrun, few_processes.command(*LAUNCHER, "-np", "4", "sleep", "60"))
    assert code == 1, err
    (line,) = err.splitlines()
    assert line.startswith("mydistrun: cannot start "), err
    assert line.endswith(PROCESSES), err
    what = line.removeprefix("mydistrun: cannot start ").partition(": ")[0]
    threads, guard = ["a thread"] * 3, "the process that guards the ranks"
    assert what == [*threads, guard, "rank 0"][most - 1], err


TAKES_MEMORY = """
import os, sys, time
if os.environ["RANK"] == "1":
    with open(sys.argv[1], "w") as file:
        file.write(str(time.monotonic()))
    taken = b"x" * (1 << 29)
time.sleep(60)
"""


def test_a_rank_that_the_oom_killer_ends_is_said_to_be_one(mydistrun: Mydistrun) -> None:
    script = mydistrun.directory / mydistrun.script(TAKES_MEMORY)
    began = mydistrun.directory / "began"
    with control_group("memory.max", str(128 << 20)) as group:
        command = group.command(*LAUNCHER, "-np", "2", str(script), str(began))
        code, err = run(mydistrun, command)
    assert time.monotonic() - float(began.read_text()) < 5, err  # The bound of the launcher.
    assert code == 137, err
    first = err.splitlines()[0]
    assert first.startswith("mydistrun: rank 1 on host localhost (pid "), err
    assert "was killed by SIGKILL (signal 9); the kernel reports that memory ran out" in first, err
    assert "stopped by mydistrun: rank 0" in err


def test_a_rendezvous_out_of_descriptors_serves_later(service: Service) -> None:
    stranger = socket.socket()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest = os.dup(stranger.fileno())
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        stranger.settimeout(0.3)
        stranger.connect(("127.0.0.1", service.port))  # The kernel takes it, and no one else.
        stranger.sendall(wire.pack_hello(wire.pack_job_id(JOB), HELLO_NONCE))
        with pytest.raises(TimeoutError):
            stranger.recv(1)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with stranger:
        stranger.settimeout(10)
        assert len(stranger.recv(64, socket.MSG_WAITALL)) == 64
    service.still_works()


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    yield running
    running.server.stop()
