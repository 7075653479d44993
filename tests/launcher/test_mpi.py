"""`--mpi`: whose output it is, who is to blame, and what a killed launcher leaves behind."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from running_job import Mydistrun, numbers, wait_gone

from mydist.launcher.failure_record import FailureRecord
from mydist.launcher.hosts import Host
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.platforms.mpi import (
    file_parameters,
    find_failures,
    find_improper,
    mpirun_command,
    name_failures,
    preloaded,
)
from mydist.launcher.platforms.mpi_output import TaggedStream

VICTIM = FailureRecord("AbortedError", "ABORTED", (0,))
RAISED = FailureRecord("ValueError")
MIXED = (
    b"[1,0]<stdout>:a [1,1]<stdout>:b [1,0]<stdout>:c\n[1,1]<stdout>:[x]\xff\n"
    b"mpirun says\n[1,9]<stdout>: too\n[1,1]<stdout>:[1,0]<stderr>:open"
)


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_pieces_of_several_ranks_in_one_line_are_sorted_by_rank(step: int) -> None:
    tagged = TaggedStream(1, 2)
    by_rank: dict[int, bytes] = {}
    own: list[bytes] = []
    taken = [tagged.feed(MIXED[at : at + step]) for at in range(0, len(MIXED), step)]
    for pieces, lines in [*taken, tagged.finish()]:
        own += lines
        for rank, piece in pieces:
            by_rank[rank] = by_rank.get(rank, b"") + piece
    assert by_rank == {0: b"a c\n", 1: b"b [x]\xff\n[1,0]<stderr>:open"}
    assert own == [b"mpirun says\n", b"[1,9]<stdout>: too\n"]


def test_a_rank_that_raised_is_blamed_before_the_victim_mpirun_names() -> None:
    assert list(name_failures({0: 1}, {0: VICTIM, 1: RAISED}).items()) == [(1, 1), (0, 1)]
    assert name_failures({2: 5}, {2: None, 1: RAISED}) == {2: 5}
    assert name_failures({0: 1}, {0: VICTIM, 1: None}) == {0: 1}


def test_messages_of_mpirun_name_ranks() -> None:
    improper = "mpirun has exited due to process rank 3 with PID 0 on\nnode vm exiting improperly."
    assert find_improper(improper) == {3}
    assert find_failures("  Process name: [[13,1],1]\n  Exit code:    4") == {1: 4}


@pytest.mark.parametrize("cause", ["raised", "silent"])
def test_the_report_tells_cause_from_victim(mydistrun: Mydistrun, cause: str) -> None:
    # Rank 1 ends first, and mpirun then stops rank 0.
    first = '{"type": "ValueError"}' if cause == "raised" else ""
    victim = '{"type": "AbortedError", "code": "ABORTED", "ranks": [0]}'
    script = mydistrun.script(
        "import os, signal, sys\n"
        "def tell(words):\n"
        "    tag = os.environ['MYDIST_FAILURE_TAG']\n"
        "    os.write(2, f'\\x1e{tag}{words}\\n'.encode())\n"
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '1':\n"
        f"    open('gate', 'rb').read()\n    tell('{victim}'); sys.exit('AbortedError')\n"
        f"if '{first}': tell('{first}')\n"
        "open('gate', 'wb').close()\nsignal.pause()\n"
    )
    os.mkfifo(mydistrun.directory / "gate")
    code, _, err = mydistrun.run("--mpi", "-np", "2", script)
    report = err[err.index("mydistrun: rank") :]
    assert code == 1
    if cause == "raised":
        assert report.startswith("mydistrun: rank 0 on host localhost exited with code 1")
        assert "  then rank 1 on host localhost exited with code 1" in report
    else:
        assert report.startswith("mydistrun: rank 0 on host localhost left the job (its exit code")
        assert "while other ranks still needed it" in report
        assert "  then rank 1 on host localhost exited with code 1" in report


# Joins MPI, which makes the segments, and does not end by itself.
JOINED = """
import ctypes, os, signal
ctypes.CDLL("libmpi.so.40", ctypes.RTLD_GLOBAL).MPI_Init(None, None)
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
print("pid", os.getpid())
print("mpirun", os.getppid())
signal.pause()
"""


Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def listening(pid: int) -> list[tuple[Address, int]]:
    """The addresses and ports at which a process takes connections."""
    files = [os.readlink(path) for path in Path(f"/proc/{pid}/fd").iterdir()]
    found: list[tuple[Address, int]] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and f"socket:[{fields[9]}]" in files:  # It listens.
                address, _, port = fields[1].partition(":")
                data = bytes.fromhex(address)
                words = [data[at : at + 4][::-1] for at in range(0, len(data), 4)]
                found.append((ipaddress.ip_address(b"".join(words)), int(port, 16)))
    return found


@pytest.mark.parametrize("end", ["killed", "Ctrl-C twice"])
def test_nothing_is_left_of_mpirun(mydistrun: Mydistrun, tmp_path: Path, end: str) -> None:
    mydistrun.env["TMPDIR"] = str(tmp_path / "tmp")
    (tmp_path / "tmp").mkdir()
    job = mydistrun.start("--mpi", "-np", "2", mydistrun.script(JOINED), stderr=subprocess.STDOUT)
    pids = numbers(job.read_until(b"pid", 2))
    mpirun = numbers(job.read_until(b"mpirun"))[0]
    command = Path(f"/proc/{mpirun}/cmdline").read_text().split("\0")
    segments = Path(command[command.index("btl_vader_backing_directory") + 1])
    assert len(list(segments.iterdir())) == 2
    assert len(list((tmp_path / "tmp").iterdir())) == 1
    ports = [place for pid in (mpirun, *pids) for place in listening(pid)]
    assert ports and all(address.is_loopback for address, _ in ports), ports
    guards = [pid for pid in job.children() if pid != mpirun]
    if end == "killed":
        job.popen.kill()
    else:
        job.popen.send_signal(signal.SIGINT)
        job.read_until(b"got SIGINT")
        job.popen.send_signal(signal.SIGINT)
    wait_gone([*pids, mpirun, *guards], 10.0)
    assert not segments.exists()
    assert list((tmp_path / "tmp").iterdir()) == []


# Starts MPI when the strangers are there.
LATE = """
import os, time
print("mpirun", os.getppid())
while not os.path.exists("gate"):
    time.sleep(0.01)
import mydist as md, torch
md.init()
print("sum", int(md.allreduce(torch.ones(1), op=md.Sum)))
"""
STRANGERS = [b"GET / HTTP/1.0\r\n\r\n", b"\0" * 64, b"\xff" * 4096]


def test_strangers_at_the_ports_of_mpirun_do_no_harm(mydistrun: Mydistrun) -> None:
    job = mydistrun.start("--mpi", "-np", "2", mydistrun.script(LATE), stderr=subprocess.STDOUT)
    (mpirun, _) = numbers(job.read_until(b"mpirun", 2))
    places = listening(mpirun)
    closed = []
    with contextlib.ExitStack() as open_ones:
        for address, port in places:
            for words in STRANGERS:
                kind = socket.AF_INET6 if address.version == 6 else socket.AF_INET
                peer = open_ones.enter_context(socket.socket(kind))
                peer.settimeout(0.2)
                try:
                    peer.connect((str(address), port))
                except TimeoutError:
                    closed.append(port)
                    break
                peer.sendall(words)
        (mydistrun.directory / "gate").touch()
        assert numbers(job.read_until(b"sum", 2)) == [2, 2]
        assert job.popen.wait(10.0) == 0
    assert len(closed) == len(places) - 1 > 0  # The ranks' own port is open.


def test_folders_of_the_user_and_of_other_hosts_are_left_alone() -> None:
    here = JobSpec(("true",), 1, (Host("localhost", 1),), mpi_args=("--mca", "orte_tmpdir_base"))
    parameters = file_parameters(here, "/a", "/b")
    command = mpirun_command(here, {"OMPI_MCA_osc_sm_backing_directory": "/c"}, parameters)
    assert "/a" not in command
    assert command.count("/b") == 2
    assert file_parameters(replace(here, hosts=(Host("far", 1),)), "/a", "/b") == {}


@pytest.mark.parametrize("others", ["", "/lib/a.so:/lib/b.so"])
def test_ranks_do_not_load_what_keeps_mpirun_on_the_loopback(
    mydistrun: Mydistrun, others: str
) -> None:
    assert preloaded(others)["LD_PRELOAD"].startswith(others)
    mydistrun.env["LD_PRELOAD"] = others
    job = mydistrun.start("--mpi", "-np", "1", "sh", "-c", 'echo "has: <$LD_PRELOAD>"')
    assert f"has: <{others}>".encode() in job.read_until(b"has: ")[0]


def test_ranks_of_one_host_listen_on_no_port_where_they_share_memory() -> None:
    here = JobSpec(("true",), 2, (Host("localhost", 2),))
    assert file_parameters(here, "/a", "/dev/shm")["btl"] == "^tcp,ofi"
    assert "btl" not in file_parameters(here, "/a", "")
    assert "btl" not in file_parameters(replace(here, num_proc=1 << 30), "/a", "/dev/shm")
    own = replace(here, tunables={"OMPI_MCA_btl": "tcp,self"})
    assert "btl" not in mpirun_command(own, {}, file_parameters(own, "/a", "/dev/shm"))


# Hosts of the job, and how many files a user may open: less than mpirun needs.
FEW_FILES = """
import resource, sys
from mydist.launcher.platforms.mpi import make_room_for_files
resource.setrlimit(resource.RLIMIT_NOFILE, (24, int(sys.argv[1])))
make_room_for_files(2)
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_mpirun_gets_the_files_that_it_needs() -> None:
    command = [sys.executable, "-c", FEW_FILES]
    raised = subprocess.run([*command, "200"], capture_output=True, text=True, check=True)
    assert raised.stdout == "42\n"
    refused = subprocess.run([*command, "30"], capture_output=True, text=True, check=False)
    assert "mpirun needs 42 open files for 2 ranks, and the limit is 30" in refused.stderr


@pytest.mark.parametrize(
    "first, missed",
    [
        ("", "started no process within 0.5 s and was killed"),
        ("true & ", "did not notice within 0.5 s that a process has ended, and was killed"),
    ],
)
def test_an_mpirun_that_is_stuck_is_ended(
    mydistrun: Mydistrun, tmp_path: Path, first: str, missed: str
) -> None:
    stuck = tmp_path / "mpirun"
    stuck.write_text(f"#!/bin/sh\n{first}exec sleep 100\n")
    stuck.chmod(0o755)
    mydistrun.env["PATH"] = f"{tmp_path}:{mydistrun.env['PATH']}"
    code, _, errors = mydistrun.run("--mpi", "-np", "1", "--start-timeout", "0.5", "true")
    assert code == 137
    assert f"mpirun {missed}" in errors


def test_survivors_of_a_time_out_are_stopped_at_once(mydistrun: Mydistrun) -> None:
    record = '{"type": "E", "code": "TIMEOUT", "ranks": [1], "operation": "allreduce"}'
    script = mydistrun.script(
        "import os, signal, sys, time\n"
        # mpirun sends it a second before SIGTERM.
        "def note(number, frame):\n"
        "    print('after', time.monotonic() - told, flush=True); sys.exit(1)\n"
        "signal.signal(signal.SIGCONT, note)\n"
        "told = time.monotonic()\n"
        "if os.environ['OMPI_COMM_WORLD_RANK'] == '0':\n"
        f"    os.write(2, b'\\x1e%b{record}\\n' % os.environb[b'MYDIST_FAILURE_TAG'])\n"
        "signal.pause()\n"
    )
    code, out, err = mydistrun.run("--mpi", "-np", "2", script)
    assert code == 1
    assert "mydistrun: rank 1 on host " in err
    assert "did not come in time; other ranks timed out waiting for it in allreduce" in err
    # Without mpirun the others have 0.8 s before the first signal.
    (after,) = re.findall(rb"\[0\]<stdout>:after (\S+)", out)
    assert float(after) < 0.8
