"""Remote hosts through ssh: a stand-in for most tests, one real sshd on loopback."""

from __future__ import annotations

import getpass
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from running_job import Mydistrun, numbers, wait_gone

import mydist.launcher
from mydist.launcher import framing
from mydist.launcher.hosts import Host
from mydist.launcher.job_spec import SshOptions
from mydist.launcher.platforms.remote_host import ssh_command

TWO = ["--ssh-local", "-np", "3", "-H", "localhost:1,127.0.0.2:2"]
WHO = 'echo "$RANK $LOCAL_RANK $MYDIST_CROSS_RANK $MYDIST_HOST_ID $PWD"'


def test_two_hosts(mydistrun: Mydistrun, fake_ssh: Path) -> None:
    odd = 'quote\' "double" $HOME `id`\nnewline (paren) \\'
    mydistrun.env["SECRET_KEY"] = "must stay here"
    mydistrun.env["NCCL_ODD"] = odd
    shell = WHO + '; env -0 > "env.$RANK"'
    code, out, err = mydistrun.run(*TWO, "-x", f"ODD={odd}", "sh", "-c", shell)
    assert (code, err) == (0, "")
    assert sorted(out.decode().splitlines()) == [
        f"[0]<stdout>:0 0 0 localhost {mydistrun.directory}",
        f"[1]<stdout>:1 0 1 127.0.0.2 {mydistrun.directory}",
        f"[2]<stdout>:2 1 0 127.0.0.2 {mydistrun.directory}",
    ]
    raw = (mydistrun.directory / "env.2").read_bytes().split(b"\0")
    env = dict(item.decode().split("=", 1) for item in raw if item)
    assert env["ODD"] == env["NCCL_ODD"] == odd
    assert "SECRET_KEY" not in env
    arguments = fake_ssh.read_text()
    assert arguments.endswith(f"-- 127.0.0.2 {sys.executable} -m mydist.launcher.agent\n")
    assert "ODD" not in arguments


def test_remote_failure(mydistrun: Mydistrun, fake_ssh: Path) -> None:
    shell = '[ "$RANK" = 2 ] || exec sleep 600; echo oh no >&2; kill -9 $$'
    code, _, err = mydistrun.run(*TWO, "sh", "-c", shell)
    assert code == 137
    assert "mydistrun: rank 2 on host 127.0.0.2 (pid " in err
    assert "was killed by SIGKILL (signal 9)" in err
    assert "    | oh no" in err
    assert "stopped by mydistrun: ranks 0, 1" in err


# Rank 1 is killed; the others print what they are told of it, and cannot write it themselves.
TOLD = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.environ["RANK"] == "1":
    os.kill(os.getpid(), signal.SIGUSR1)
fd = int(os.environ["MYDIST_JOB_ENDS_FD"])
while not (told := os.pread(fd, 2, 2)).strip(b"\\0"):
    time.sleep(0.01)
try:
    os.pwrite(fd, b"x", 0)
except OSError as error:
    told += error.strerror.encode()
print(told, flush=True)
os._exit(0)
"""


def test_every_rank_is_told_which_signal_ended_another(
    mydistrun: Mydistrun, fake_ssh: Path
) -> None:
    _, out, err = mydistrun.run(*TWO, sys.executable, mydistrun.script(TOLD))
    told = rb"b'\x02\nOperation not permitted'"  # By a signal: 10, which is SIGUSR1.
    assert sorted(out.splitlines()) == [b"[0]<stdout>:" + told, b"[2]<stdout>:" + told], err


def test_missing_program_on_the_remote_host(mydistrun: Mydistrun, fake_ssh: Path) -> None:
    code, _, err = mydistrun.run("--ssh-local", "-H", "127.0.0.2:1", "nosuch")
    assert code == 127
    assert "rank 0 on host 127.0.0.2 was lost: command 'nosuch' not found" in err


def test_missing_interpreter_on_the_remote_host(mydistrun: Mydistrun, fake_ssh: Path) -> None:
    script = mydistrun.directory / mydistrun.script("#!/no/sh -e\n", "train.sh")
    script.chmod(0o755)
    code, _, err = mydistrun.run("--ssh-local", "-H", "127.0.0.2:1", "./train.sh")
    assert code == 126
    assert "its first line names the interpreter '/no/sh', which does not exist" in err


def test_every_unreachable_host_is_named(mydistrun: Mydistrun, fake_ssh: Path) -> None:
    hosts = "refused.example:1,silent.example:1,127.0.0.2:1"
    code, out, err = mydistrun.run("--ssh-local", "--start-timeout", "1", "-H", hosts, "true")
    assert (code, out) == (1, b"")
    assert err.splitlines() == [
        "mydistrun: host 'refused.example': ssh exited with 255: "
        "ssh: connect to host refused.example port 22: Connection refused",
        "mydistrun: host 'silent.example': no answer within 1 s; "
        "its last output: debug: connecting",
    ]


def test_a_host_that_waits_for_others_hears_of_us(mydistrun: Mydistrun, fake_ssh: Path) -> None:
    # Else its agent would give up when another host takes longer to answer than it is patient.
    hosts = ["--ssh-local", "--start-timeout", "1", "-H", "silent.example:1"]
    assert mydistrun.run(*hosts, "true")[0] == 1
    heard = (mydistrun.directory / "heard").read_bytes()
    assert heard.startswith(framing.pack(framing.Kind.PING))


def test_remote_without_python_or_mydist(mydistrun: Mydistrun, fake_ssh: Path) -> None:
    base = ["--ssh-local", "-H", "127.0.0.2:1"]
    code, _, err = mydistrun.run(*base, "--remote-python", "/no/python", "true")
    assert code == 1
    assert (
        "/no/python does not exist there; give the path of its Python with --remote-python" in err
    )
    other = mydistrun.directory / "python without mydist"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    other.chmod(0o755)
    code, _, err = mydistrun.run(*base, "--remote-python", str(other), "true")
    assert code == 1
    assert f"mydist is not installed there for {other}" in err


@pytest.mark.parametrize("victim", ["launcher", "ssh", "agent"])
def test_nothing_remains_whatever_is_killed(
    mydistrun: Mydistrun, fake_ssh: Path, victim: str
) -> None:
    shell = 'sleep 600 & echo "pid $!"; echo "agent $PPID"; echo "pid $$"; wait'
    job = mydistrun.start("--ssh-local", "-np", "1", "-H", "127.0.0.2:1", "sh", "-c", shell)
    pids = numbers(job.read_until(b"pid", 2))
    agent = numbers(job.read_until(b"agent"))[0]
    # the stand-in for ssh becomes the agent's shell; its session leader is what was started
    target = {"launcher": job.popen.pid, "ssh": os.getsid(agent), "agent": agent}[victim]
    os.kill(target, signal.SIGKILL)
    wait_gone(pids)
    code, err = job.finish()
    assert code == (-signal.SIGKILL if victim == "launcher" else 1)
    if victim != "launcher":
        assert "rank 0 on host 127.0.0.2 (pid " in err
        assert "was lost: " in err


def test_ctrl_c_reaches_remote_ranks(mydistrun: Mydistrun, fake_ssh: Path) -> None:
    job = mydistrun.start(*TWO, "sh", "-c", 'echo "pid $$"; exec sleep 600')
    pids = numbers(job.read_until(b"pid", 3))
    job.popen.send_signal(signal.SIGINT)
    assert job.finish()[0] == 130
    wait_gone(pids)


def test_ssh_options() -> None:
    options = SshOptions(2222, "/key", ("-F", "conf"), "/opt/my python", 5.0)
    assert ssh_command(Host("me@fe80::1", 1), options) == [
        "ssh", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5",
        "-o", "ServerAliveInterval=3", "-o", "ServerAliveCountMax=2",
        "-p", "2222", "-i", "/key", "-F", "conf", "--", "me@fe80::1",
        "'/opt/my python' -m mydist.launcher.agent",
    ]  # fmt: skip


def test_mpirun_gets_the_same_ssh_options(mydistrun: Mydistrun) -> None:
    base = ["--mpi", "--dry-run", "-H", "hostb:2", "--network-interfaces", "lo"]
    code, out, err = mydistrun.run(*base, "-p", "2222", "--ssh-args", "-l me", "true")
    assert (code, err) == (0, "")
    assert b" --mca plm_rsh_args '-T -o BatchMode=yes -o " in out
    assert b" -p 2222 -l me' --mca oob_tcp_if_include lo --mca btl_tcp_if_include lo " in out
    code, _, err = mydistrun.run(*base, "--ssh-args", "-o 'ProxyCommand nc %h'", "true")
    assert code == 1
    assert (
        "mpirun cannot pass on the ssh argument 'ProxyCommand nc %h': mpirun splits it at spaces"
        in err
    )


def test_frames_survive_any_cut_and_noise() -> None:
    stream = b"Last login: \x00\xff\n" + framing.MAGIC
    stream += framing.pack_json(framing.Kind.HELLO, {"odd": "\udcff"})
    stream += framing.pack_numbers(framing.Kind.OUTPUT, 3, 2, data=b"\x00\xff") + framing.pack(
        framing.Kind.PING
    )
    for step in (1, 3, 1000):
        reader = framing.FrameReader(expect_magic=True)
        frames = []
        for at in range(0, len(stream), step):
            frames += list(reader.feed(stream[at : at + step]))
        kinds = [kind for kind, _ in frames]
        assert kinds == [framing.Kind.HELLO, framing.Kind.OUTPUT, framing.Kind.PING]
        assert framing.unpack_json(frames[0][1]) == {"odd": "\udcff"}
        assert framing.unpack_numbers(*frames[1]) == (3, 2, b"\x00\xff")


BAD_FRAMES = [
    (b"\xff\xff\xff\xff\x01", "frame of 4294967295 bytes, at most"),
    (b"\x00\x00\x00\x00\x01", "frame of 0 bytes, at most"),
    (b"\x00\x00\x00\x01\xee", "frame of unknown kind 238"),
]


@pytest.mark.parametrize(("data", "text"), BAD_FRAMES)
def test_bad_frames(data: bytes, text: str) -> None:
    with pytest.raises(framing.FrameError, match=text):
        list(framing.FrameReader().feed(data))


@pytest.mark.parametrize(
    ("kind", "fields", "text"),
    [
        ("HELLO", {"free_port": math.inf}, "free_port is inf, expected an integer from 0 to 65535"),
        ("HELLO", {"free_port": -1}, "free_port is -1, expected an integer from 0 to 65535"),
        ("ERROR", {"exit_code": math.inf}, "exit_code is inf, expected an integer from 0 to 255"),
        ("ERROR", {"exit_code": 10**4000}, f"exit_code is 1{'0' * 39}, expected an integer"),
    ],
)
def test_an_agent_that_sends_no_numbers(
    mydistrun: Mydistrun, tmp_path: Path, kind: str, fields: dict[str, object], text: str
) -> None:
    (tmp_path / "frame").write_bytes(framing.MAGIC + framing.pack_json(framing.Kind[kind], fields))
    (tmp_path / "ssh").write_text(f"#!/bin/sh\ncat '{tmp_path / 'frame'}'\nexec cat >heard\n")
    (tmp_path / "ssh").chmod(0o755)
    mydistrun.env["PATH"] = f"{tmp_path}:{mydistrun.env['PATH']}"
    code, _, err = mydistrun.run("-np", "1", "-H", "far", "true")
    assert code == 1
    assert f"mydistrun: host 'far': its agent sent a malformed message: {text}" in err


def test_endless_noise_is_an_error() -> None:
    with pytest.raises(framing.FrameError, match="prints too much before"):
        list(framing.FrameReader(expect_magic=True).feed(b"x" * 70000))


@pytest.fixture
def sshd_port(tmp_path: Path) -> Iterator[int]:
    """A private sshd on 127.0.0.2 with its own keys; ends with the test."""
    program = shutil.which("sshd", path=os.environ["PATH"] + ":/usr/sbin")
    if program is None or shutil.which("ssh") is None:
        pytest.skip("no OpenSSH server and client here")
    for name in ("host", "user"):
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(command, check=True)
    tmp_path.chmod(0o700)
    with socket.create_server(("127.0.0.2", 0)) as probe:
        port = int(probe.getsockname()[1])
    host_key = (tmp_path / "host.pub").read_text()
    (tmp_path / "known").write_text(f"[127.0.0.2]:{port} {host_key}")
    package = Path(mydist.launcher.__path__[0]).absolute().parents[1]
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.2\nHostKey {tmp_path}/host\nPidFile none\n"
        f"AuthorizedKeysFile {tmp_path}/user.pub\nStrictModes no\nUsePAM no\n"
        f"PermitRootLogin yes\nPasswordAuthentication no\nSetEnv PYTHONPATH={package}\n"
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    command = [program, "-D", "-e", "-f", str(tmp_path / "sshd_config")]
    server = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert server.stderr is not None
    line = server.stderr.readline()
    assert b"listening" in line, line
    yield port
    server.terminate()
    server.communicate(timeout=10)


def test_real_ssh(mydistrun: Mydistrun, sshd_port: int, tmp_path: Path) -> None:
    arguments = [*TWO, "-p", str(sshd_port), "-i", str(tmp_path / "user"), "--ssh-args",
                 f"-F none -o UserKnownHostsFile={tmp_path}/known -l {getpass.getuser()}",
                 ]  # fmt: skip
    odd = 'it\'s $HOME\n"x"'
    shell = WHO + '; printf %s "$ODD" > "odd.$RANK"; [ "$RANK" != 2 ] || exit 9'
    code, out, err = mydistrun.run(*arguments, "-x", f"ODD={odd}", "sh", "-c", shell)
    assert code == 9, err
    assert b"[2]<stdout>:2 1 0 127.0.0.2 " in out
    assert (mydistrun.directory / "odd.1").read_text() == odd
    assert "mydistrun: rank 2 on host 127.0.0.2 (pid " in err
    wrong_key = [a.replace("/known", "/unknown") for a in arguments]
    code, _, err = mydistrun.run(*wrong_key, "true")
    assert code == 1
    assert "mydistrun: host '127.0.0.2': ssh exited with 255: Host key verification failed." in err
