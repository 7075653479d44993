"""Elastic jobs as the launcher sees them; the workers speak its protocol and train nothing."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from running_job import Mydistrun

from mydist.launcher.cli import main

# What a worker does is a function `live(member)` that each test adds.
MEMBER = """
import os, signal, sys, time
from mydist.job import rendezvous_wire as wire
from mydist.job.rendezvous_client import RendezvousClient

class Member:
    def __init__(self):
        self.number = int(os.environ["MYDIST_JOB_WORKER"])
        self.host = os.environ["MYDIST_HOST_ID"]
        self.slot = os.environ["LOCAL_RANK"]
        self.socket = RendezvousClient.from_environment(os.environ, 10.0).join(self.number)
        self.epoch = 0

    def send(self, **message):
        self.socket.sendall(wire.pack_frame(message))

    def receive(self):
        header = self.socket.recv(4, 256)
        return wire.unpack_frame(self.socket.recv(wire.frame_bytes(header), 256))

    def meet(self, commit=-1, lost=False, blamed=()):
        "Waits for the next epoch."
        self.send(ready=self.epoch, commit=commit, lost=lost, blamed=list(blamed), why="it said so")
        while "world" not in (message := self.receive()):
            if "end" in message:
                print(f"worker {self.number} is dismissed", flush=True)
                sys.exit(0)
        self.rank, self.size = message["world"]["rank"], message["world"]["size"]
        self.epoch, root = message["world"]["epoch"], message["world"]["root"]
        print(f"epoch {self.epoch}: worker {self.number} on {self.host} is rank {self.rank} of "
              f"{self.size}, root {root}", flush=True)

    def await_ask(self):
        assert self.receive() == {"ask": self.epoch}
"""


NO_REST = ["--blacklist-cooldown-range", "0"]


class Elastic:
    def __init__(self, mydistrun: Mydistrun) -> None:
        self.mydistrun = mydistrun

    def run(self, live: str, *flags: str) -> tuple[int, list[str], str]:
        """Exit code, what the workers said, and the error stream."""
        script = self.mydistrun.script(f"{MEMBER}\n{live}\nlive(Member())\n")
        code, out, err = self.mydistrun.run(*flags, "python", script)
        said = [line.partition(">:")[2] for line in out.decode().splitlines()]
        return code, sorted(said), err


@pytest.fixture
def elastic(mydistrun: Mydistrun) -> Elastic:
    return Elastic(mydistrun)


def epochs(said: list[str]) -> dict[int, list[tuple[int, int]]]:
    """By epoch: worker and rank of each member, in the order of the ranks."""
    found: dict[int, list[tuple[int, int]]] = {}
    for line in said:
        if match := re.match(r"epoch (\d+): worker (\d+) on \S+ is rank (\d+) of", line):
            epoch, worker, rank = map(int, match.groups())
            found.setdefault(epoch, []).append((worker, rank))
    return {epoch: sorted(pairs, key=lambda pair: pair[1]) for epoch, pairs in found.items()}


REPLACED = """
def live(member):
    member.meet()
    if member.epoch == 1:
        if member.rank == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
        member.meet(commit=5, lost=True, blamed=[0])
        member.await_ask()
        member.meet(commit=6)
    assert member.epoch == 3
    assert member.slot == str([2, 1, 0][member.rank])
    member.send(done=True)
"""


def test_a_lost_rank_is_replaced_in_its_slot(elastic: Elastic, tmp_path: Path) -> None:
    # So long that the others meet before it comes, also on a busy machine.
    flags = ["-np", "3", "--min-np", "1", "--blacklist-cooldown-range", "1"]
    flags += ["--output-filename", "logs"]
    code, said, err = elastic.run(REPLACED, *flags)
    assert code == 0, err
    assert epochs(said) == {
        1: [(0, 0), (1, 1), (2, 2)],
        2: [(2, 0), (1, 1)],
        3: [(2, 0), (1, 1), (3, 2)],
    }
    assert "lost rank 0 on host localhost" in err
    assert "killed by SIGKILL" in err
    assert "epoch 2: 2 ranks, before 3; the state is that of rank 0" in err
    folders = sorted(path.name for path in (tmp_path / "logs").iterdir())
    assert folders == [f"worker.{n}" for n in range(4)]
    assert "epoch 3" in (tmp_path / "logs/worker.3/stdout").read_text()


def test_too_few_ranks_end_the_job_after_the_timeout(elastic: Elastic) -> None:
    live = """
def live(member):
    member.meet()
    if member.rank == 1:
        sys.exit(7)
    member.meet(commit=1, lost=True)
"""
    flags = ["-np", "2", "--min-np", "2", "--blacklist-cooldown-range", "100"]
    code, said, err = elastic.run(live, *flags, "--elastic-timeout", "4")
    assert code == 1, err
    assert list(epochs(said)) == [1]
    assert (
        "mydistrun: the job ends: 1 rank is there, but --min-np is 2; waited 4 s "
        "(--elastic-timeout) for more"
    ) in err


def test_the_end_of_all_ranks_is_that_of_the_job(elastic: Elastic) -> None:
    live = """
def live(member):
    member.meet()
    print("a mistake", file=sys.stderr)
    sys.exit(40 + member.rank)
"""
    code, _, err = elastic.run(live, "-np", "2", "--min-np", "1")
    assert code in (40, 41)
    assert "all ranks of epoch 1 are lost, and with them the state of the job" in err
    assert f"exited with code {code}" in err
    assert "    | a mistake" in err


def test_a_host_is_given_up_with_its_reason(elastic: Elastic) -> None:
    live = """
def live(member):
    if member.host == "127.0.0.2":
        with open("failed", "a") as file:
            file.write(f"{os.getpid()}\\n")
        sys.exit(3)
    member.meet()
    pids = []
    while len(pids) < 4 or any(os.path.exists(f"/proc/{pid}") for pid in pids):
        time.sleep(0.05)
        pids = open("failed").read().split() if os.path.exists("failed") else []
    time.sleep(1)  # mydistrun knows of the last end, too.
    member.send(done=True)
"""
    flags = ["-H", "localhost:1,127.0.0.2:1", "--min-np", "1", "--blacklist-cooldown-range", "0"]
    code, said, err = elastic.run(live, *flags)
    assert code == 0, err
    assert epochs(said) == {1: [(0, 0)]}
    assert err.count("exited with code 3") == 4
    assert (
        "mydistrun: gave up host 127.0.0.2: 4 workers in a row ended before they were members"
    ) in err


def test_a_program_that_never_joins_ends_the_job(elastic: Elastic) -> None:
    live = "def live(member): sys.exit(5)"
    code, said, err = elastic.run(live, "-np", "2", "--min-np", "1", *NO_REST)
    assert code == 5, err
    assert not epochs(said)
    assert "the job ends: no host is left" in err


DISCOVERED = """
def live(member):
    member.meet()
    while member.epoch < 3:
        if member.rank == 0:
            with open("hosts", "w") as file:
                file.write(["", "localhost:1\\n127.0.0.2:1\\n", "127.0.0.2\\n"][member.epoch])
        member.await_ask()
        member.meet(commit=member.epoch)
    member.send(done=True)
"""


def test_hosts_come_and_go_as_the_script_says(elastic: Elastic, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost:1\n")
    flags = ["--min-np", "1", "--host-discovery-script", "cat hosts"]
    code, said, err = elastic.run(DISCOVERED, *flags)
    assert code == 0, err
    assert epochs(said) == {1: [(0, 0)], 2: [(0, 0), (1, 1)], 3: [(1, 0)]}
    assert "worker 0 is dismissed" in said
    assert "rank 0 on host localhost" in err
    assert "leaves: its slot was taken away" in err


def test_a_script_that_fails_says_why(elastic: Elastic) -> None:
    live = "def live(member): pass"
    script = "sh -c 'echo no such cluster >&2; exit 4'"
    code, _, err = elastic.run(live, "--min-np", "1", "--host-discovery-script", script)
    assert code == 1
    assert err == (
        "mydistrun: --host-discovery-script 'sh': it exited with code 4: no such cluster\n"
    )
    code, _, err = elastic.run(live, "--min-np", "1", "--host-discovery-script", "./none.sh")
    assert code == 1
    assert "cannot run './none.sh': No such file or directory" in err
    code, _, err = elastic.run(live, "--min-np", "1", "--host-discovery-script", "echo a:b")
    assert "slots must be an integer" in err


@pytest.mark.deep
def test_a_script_that_fails_later_leaves_the_hosts(elastic: Elastic, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("localhost:1\n")
    live = """
def live(member):
    member.meet()
    os.remove("hosts")
    time.sleep(3)
    member.send(done=True)
"""
    flags = ["--min-np", "1", "--host-discovery-script", "cat hosts"]
    code, said, err = elastic.run(live, *flags)
    assert code == 0, err
    assert len(said) == 1
    assert err.count("the hosts stay as they were") == 1


def test_the_reset_limit(elastic: Elastic) -> None:
    live = """
def live(member):
    member.meet()
    while True:
        time.sleep(0.05)
        member.meet(commit=member.epoch, lost=True)
"""
    code, said, err = elastic.run(live, "-np", "1", "--min-np", "1", "--reset-limit", "2")
    assert code == 1
    assert list(epochs(said)) == [1, 2, 3]
    assert "the job ends: --reset-limit 2 is reached" in err
    assert "a rank said: it said so" in err


def test_a_rank_that_does_not_answer_is_killed(elastic: Elastic) -> None:
    live = """
def live(member):
    member.meet()
    if member.rank == 1 and member.epoch == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    member.meet(commit=1, lost=True, blamed=[1])
    member.send(done=True)
"""
    code, said, err = elastic.run(live, "-np", "2", "--min-np", "1")
    assert code == 0, err
    assert epochs(said)[2] == [(0, 0)]
    assert "other ranks have lost it, and it did not answer for 2 s" in err


def test_a_failure_after_the_work_is_that_of_the_job(elastic: Elastic) -> None:
    live = """
def live(member):
    member.meet()
    member.send(done=True)
    if member.rank == 1:
        time.sleep(0.2)
        sys.exit(9)
"""
    code, said, err = elastic.run(live, "-np", "2", "--min-np", "1")
    assert code == 9, err
    assert list(epochs(said)) == [1], "nobody begins the work again"


def test_a_rank_that_waits_when_the_work_is_done_leaves(elastic: Elastic) -> None:
    live = """
def live(member):
    member.meet()
    if member.rank == 1:
        member.meet(commit=1, lost=True)
    time.sleep(0.3)
    member.send(done=True)
    time.sleep(0.3)
"""
    code, said, err = elastic.run(live, "-np", "2", "--min-np", "1")
    assert code == 0, err
    assert "worker 1 is dismissed" in said
    assert "leaves: the work is done" in err


def test_a_worker_without_output_files_does_not_start(elastic: Elastic, tmp_path: Path) -> None:
    live = """
def live(member):
    member.meet()
    if member.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    member.meet(commit=1, lost=True)
    while not os.path.exists("logs/worker.3"):
        time.sleep(0.02)
    member.send(done=True)
"""
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "worker.2").write_text("")
    flags = ["-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "0.1,1"]
    flags += ["--output-filename", "logs"]
    code, said, err = elastic.run(live, *flags)
    assert code == 0, err
    assert [len(members) for members in epochs(said).values()] == [2, 1]
    assert re.search(r"cannot create '.*worker\.2': File exists", err)
    assert b"epoch 2" in (tmp_path / "logs" / "worker.0" / "stdout").read_bytes()


def test_a_worker_that_cannot_be_started_ends_no_other(
    mydistrun: Mydistrun, tmp_path: Path
) -> None:
    live = """
def live(member):
    member.meet()
    if member.rank == 1:
        os.remove("program")
        os.kill(os.getpid(), signal.SIGKILL)
    member.meet(commit=1, lost=True)
    time.sleep(1)
    member.send(done=True)
"""
    script = mydistrun.script(f"{MEMBER}\n{live}\nlive(Member())\n")
    flags = ["--blacklist-cooldown-range", "0.2,60"]
    (tmp_path / "program").write_text(f'#!/bin/sh\nexec "{sys.executable}" {script}\n')
    (tmp_path / "program").chmod(0o755)
    code, out, err = mydistrun.run("-np", "2", "--min-np", "1", *flags, "./program")
    assert code == 0, err
    assert b"epoch 2: worker 0 on localhost is rank 0 of 1" in out
    assert re.search(r"command '.*program' not found", err)


def test_a_rank_that_leaves_early_fails_the_job(elastic: Elastic) -> None:
    live = """
def live(member):
    member.meet()
    if member.rank == 1:
        sys.exit(0)
    time.sleep(0.3)
    member.meet(commit=1, lost=True, blamed=[1])
"""
    code, said, err = elastic.run(live, "-np", "2", "--min-np", "1")
    assert code == 1, err
    assert list(epochs(said)) == [1]
    assert re.search(r"the job ends: rank 1 on .* ended with code 0, while others needed it", err)


def test_a_program_without_elastic_run_may_end_well(elastic: Elastic) -> None:
    live = "def live(member):\n    member.meet()\n    time.sleep(0.1 * member.rank)\n"
    code, _, err = elastic.run(live, "-np", "3", "--min-np", "1")
    assert code == 0
    assert err == ""


def test_ctrl_c_ends_all(mydistrun: Mydistrun) -> None:
    live = "def live(member):\n    member.meet()\n    time.sleep(60)\n"
    script = mydistrun.script(f"{MEMBER}\n{live}\nlive(Member())\n")
    job = mydistrun.start("-np", "2", "--min-np", "1", "python", script)
    job.read_until(b"epoch 1", 2)
    job.popen.send_signal(2)
    code, err = job.finish()
    assert code == 130
    assert "got SIGINT" in err


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (["--reset-limit", "2"], "--reset-limit is for elastic jobs; give --min-np, --max-np or"),
        (["--min-np", "2", "--mpi"], "mpirun ends the job with the first rank it loses"),
        (["--min-np", "1", "--servers", "1"], "an elastic job has no servers yet"),
        (["--min-np", "3", "--max-np", "2"], "--min-np 3 is above --max-np 2"),
        (["-H", "a:1", "--min-np", "2"], "--min-np 2: the hosts have only 1 slot"),
        (
            ["-H", "a:1", "--host-discovery-script", "x"],
            "--host-discovery-script and --hosts exclude each other",
        ),
        (["--min-np", "1", "--slots-per-host", "2"], "is for --host-discovery-script"),
    ],
)
def test_flags_that_contradict_each_other(
    capsys: pytest.CaptureFixture[str], flags: list[str], error: str
) -> None:
    assert main([*flags, "true"]) == 2
    err = capsys.readouterr().err
    assert error in err
    assert err.count("\n") == 1


def test_the_dry_run_shows_hosts_and_command(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["-H", "localhost:2,127.0.0.2:2", "--min-np", "1", "--max-np", "3", "--dry-run"]
    assert main([*flags, "true"], {"PATH": os.environ["PATH"]}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "elastic job: 1 to 3 ranks"
    assert lines[1:3] == ["host localhost:2: directly", "host 127.0.0.2:2: directly"]
    assert "  each worker: true" in lines
    assert main(["--min-np", "1", "--host-discovery-script", "./h", "--dry-run", "true"], {}) == 0
    assert "hosts: as printed by ./h" in capsys.readouterr().out


@pytest.mark.usefixtures("fake_ssh")
def test_other_hosts_are_reached_through_ssh(elastic: Elastic) -> None:
    live = """
def live(member):
    member.meet()
    if member.epoch == 1:
        if member.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
        member.meet(commit=1, lost=True)
        member.await_ask()
        member.meet(commit=2)
    member.send(done=True)
"""
    flags = ["-H", "localhost:1,127.0.0.2:1,refused.example:1", "--ssh-local", "--min-np", "1"]
    code, said, err = elastic.run(live, *flags, "--blacklist-cooldown-range", "1")
    assert code == 0, err
    assert epochs(said)[3][0] == (0, 0)
    assert epochs(said)[3][1][0] > 2
    assert "Connection refused" in err


def test_a_host_that_answers_after_the_work_starts_nothing(
    elastic: Elastic, tmp_path: Path, fake_ssh: Path
) -> None:
    ssh = tmp_path / "bin" / "ssh"
    waits = "touch asked\nuntil [ -e over ]; do sleep 0.02; done\nexec env"
    ssh.write_text(ssh.read_text().replace("exec env", waits))
    (tmp_path / "hosts").write_text("localhost:1\n")
    live = """
def live(member):
    member.meet()
    with open("hosts", "a") as hosts:
        hosts.write("127.0.0.2:1\\n")
    while not os.path.exists("asked"):
        time.sleep(0.02)
    member.send(done=True)
    time.sleep(0.5)
    open("over", "w").close()
"""
    flags = ["--min-np", "1", "--host-discovery-script", "cat hosts", "--ssh-local"]
    code, said, err = elastic.run(live, *flags)
    assert code == 0, err
    assert epochs(said) == {1: [(0, 0)]}
