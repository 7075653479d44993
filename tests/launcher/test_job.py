"""Whole jobs on this machine: environment, output, failures, signals; nothing is left behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from running_job import SECONDS, Mydistrun, numbers, wait_gone

from mydist.launcher.command import resolve_command
from mydist.launcher.elf_file import missing_loader
from mydist.launcher.errors import LaunchError
from mydist.launcher.job_spec import JobSpec

CONTRACT = """
import json, os
keys = [k for k in os.environ if k.startswith("MYDIST_") or k in (
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "NODE_RANK", "MASTER_ADDR",
    "MASTER_PORT", "PYTHONUNBUFFERED", "ODD")]
print(json.dumps({k: os.environ[k] for k in keys}))
"""
EXCHANGE = """
import os
from mydist.job.rendezvous_client import RendezvousClient
rank, size = int(os.environ["MYDIST_RANK"]), int(os.environ["MYDIST_SIZE"])
client = RendezvousClient.from_environment(os.environ, 30.0)
print(client.exchange("hello", rank, size, f"from {rank}".encode()))
"""
# Ignores what it can, has a child that left its process group, and tells both pids.
STUBBORN = """
import os, signal, subprocess, sys
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
child = subprocess.Popen(["sleep", "600"], process_group=0)
print("pid", child.pid)
print("pid", os.getpid())
signal.pause()
"""


def environments(out: bytes) -> dict[int, dict[str, str]]:
    lines = [line.split(b">:", 1) for line in out.splitlines()]
    return {int(prefix[1:].split(b"]")[0]): json.loads(text) for prefix, text in lines}


def test_environment_contract(mydistrun: Mydistrun) -> None:
    name = mydistrun.script(CONTRACT)
    mydistrun.env["MYDIST_RANK"] = "77"
    arguments = ["-np", "3", "-H", "localhost:2,127.0.0.1:2", "--cache-capacity", "5", "--gloo"]
    code, out, err = mydistrun.run(*arguments, "-x", "ODD=a'b\"c\n$(d)", name)
    assert (code, err) == (0, "")
    seen = environments(out)
    assert sorted(seen) == [0, 1, 2]
    common = {"WORLD_SIZE": "3", "MYDIST_SIZE": "3", "MASTER_ADDR": "127.0.0.1",
              "MYDIST_CONTROLLER": "gloo", "MYDIST_CACHE_CAPACITY": "5",
              "PYTHONUNBUFFERED": "1", "ODD": "a'b\"c\n$(d)"}  # fmt: skip
    layout = [  # rank, local rank, local size, cross rank, cross size, node, host
        (0, 0, 2, 0, 2, 0, "localhost"),
        (1, 1, 2, 0, 1, 0, "localhost"),
        (2, 0, 1, 1, 2, 1, "127.0.0.1"),
    ]
    for same in ("MASTER_PORT", "MYDIST_JOB_ID", "MYDIST_RENDEZVOUS", "MYDIST_FAILURE_TAG"):
        values = {seen[rank].pop(same) for rank in seen}
        assert len(values) == 1
        assert re.fullmatch(r"[0-9]+|[0-9a-f]{16}|[0-9a-f]{32}|127\.0\.0\.1:[0-9]+", values.pop())
    for rank, local_rank, local_size, cross_rank, cross_size, node, host in layout:
        env = seen[rank]
        assert int(env.pop("MYDIST_JOB_KEY_FD")) > 2
        assert int(env.pop("MYDIST_JOB_ENDS_FD")) > 2
        assert env == common | {
            "RANK": str(rank), "MYDIST_RANK": str(rank),
            "LOCAL_RANK": str(local_rank), "MYDIST_LOCAL_RANK": str(local_rank),
            "LOCAL_WORLD_SIZE": str(local_size), "MYDIST_LOCAL_SIZE": str(local_size),
            "MYDIST_CROSS_RANK": str(cross_rank), "MYDIST_CROSS_SIZE": str(cross_size),
            "NODE_RANK": str(node), "MYDIST_HOST_ID": host,
        }  # fmt: skip


def test_ranks_meet_at_the_rendezvous(mydistrun: Mydistrun) -> None:
    code, out, err = mydistrun.run("-np", "3", "--verbose", mydistrun.script(EXCHANGE))
    assert code == 0, err
    assert out.count(b"[b'from 0', b'from 1', b'from 2']") == 3
    assert "mydistrun: rendezvous listens on 127.0.0.1:" in err


def test_first_failure_is_reported_and_stops_the_others(mydistrun: Mydistrun) -> None:
    script = mydistrun.script(
        "import os, signal, sys\n"
        "if os.environ['RANK'] == '1': sys.exit('this is why')\n"
        "signal.pause()\n"
    )
    started = time.monotonic()
    code, out, err = mydistrun.run("-np", "3", script)
    assert (code, out) == (1, b"")
    assert time.monotonic() - started < 15  # the others would wait for ever
    first, *rest = err.splitlines()
    assert first == "[1]<stderr>:this is why"
    assert rest[0].startswith("mydistrun: rank 1 on host localhost (pid ")
    assert " exited with code 1 after " in rest[0]
    assert rest[1:] == [
        "  last lines of its error output:",
        "    | this is why",
        "  stopped by mydistrun: ranks 0, 2",
    ]


def test_survivors_of_a_time_out_are_stopped_while_they_wait_to_leave(
    mydistrun: Mydistrun,
) -> None:
    record = '{"type": "E", "code": "TIMEOUT", "ranks": [1], "operation": "allreduce"}'
    script = mydistrun.script(
        "import os, signal\n"
        "if os.environ['RANK'] == '0':\n"
        f"    os.write(2, b'\\x1e%b{record}\\n' % os.environb[b'MYDIST_FAILURE_TAG'])\n"
        "signal.pause()\n"  # As shutdown() in both of them would, for five seconds.
    )
    code, _, err = mydistrun.run("-np", "2", script)
    assert code == 1
    first, *_, then = err.splitlines()
    assert first.startswith("mydistrun: rank 1 on host localhost (pid ")
    waited = ") did not come in time; other ranks timed out waiting for it in allreduce"
    assert first.endswith(waited)
    assert then.startswith("  then rank 0 on host localhost (pid ")
    assert then.endswith(") ended with E in allreduce")


@pytest.mark.parametrize(
    ("text", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -SEGV $$", 139), ("exit 255", 255)],
)
def test_exit_codes(mydistrun: Mydistrun, text: str, code: int) -> None:
    got, _, _ = mydistrun.run("-np", "2", "sh", "-c", f'[ "$RANK" = 0 ] || {{ {text}; }}')
    assert got == code


def test_stubborn_ranks_and_their_children_are_killed(mydistrun: Mydistrun) -> None:
    mydistrun.script(STUBBORN, "stubborn.py")
    os.mkfifo(mydistrun.directory / "gate")
    shell = 'if [ "$RANK" = 0 ]; then cat gate; exit 4; fi; exec python3 stubborn.py'
    job = mydistrun.start("-np", "2", "sh", "-c", shell)
    pids = numbers(job.read_until(b"pid", 2))
    (mydistrun.directory / "gate").write_text("")
    wait_gone(pids)
    assert job.finish()[0] == 4


@pytest.mark.parametrize("victim", ["launcher", "launcher and guard"])
def test_killed_launcher_leaves_nothing(mydistrun: Mydistrun, victim: str) -> None:
    job = mydistrun.start("-np", "2", mydistrun.script(STUBBORN))
    pids = numbers(job.read_until(b"pid", 4))
    children = job.children()
    guards = [pid for pid in children if pid not in pids]
    assert len(guards) == 1
    if victim == "launcher":
        job.popen.kill()
        wait_gone(pids + guards)
    else:  # then the ranks still go; what they themselves started is out of reach
        os.kill(guards[0], signal.SIGKILL)
        job.popen.kill()
        wait_gone([pid for pid in pids if pid in children])
        for pid in pids:
            if pid not in children:
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_job(mydistrun: Mydistrun, signum: signal.Signals, code: int) -> None:
    script = mydistrun.script("import os, signal\nprint('pid', os.getpid())\nsignal.pause()\n")
    job = mydistrun.start("-np", "2", script)
    pids = numbers(job.read_until(b"pid", 2))
    job.popen.send_signal(signum)
    got, err = job.finish()
    assert got == code
    assert f"mydistrun: got {signum.name}, stopping the ranks" in err
    wait_gone(pids)


def test_the_time_to_stop_can_be_set(mydistrun: Mydistrun) -> None:
    script = mydistrun.script(STUBBORN)
    seconds = []
    for timeout in ("0.1", "4"):
        job = mydistrun.start(
            "-np", "1", "--stop-timeout", timeout, script, stderr=subprocess.STDOUT
        )
        pids = numbers(job.read_until(b"pid", 2))
        started = time.monotonic()
        job.popen.send_signal(signal.SIGTERM)
        wait_gone(pids, SECONDS)
        seconds.append(time.monotonic() - started)
        assert job.finish()[0] == 143
    assert seconds[0] < 2.4 and seconds[1] >= 4, seconds  # by default 2.5


@pytest.mark.parametrize(
    ("signum", "code", "graceful"), [(signal.SIGINT, 130, 3.0), (signal.SIGTERM, 143, 30.0)]
)
def test_second_ctrl_c_kills_at_once(
    mydistrun: Mydistrun, signum: signal.Signals, code: int, graceful: float
) -> None:
    script = mydistrun.script(STUBBORN)
    job = mydistrun.start("-np", "2", "--stop-timeout", "30", script, stderr=subprocess.STDOUT)
    pids = numbers(job.read_until(b"pid", 4))
    started = time.monotonic()
    job.popen.send_signal(signum)
    job.read_until(f"got {signum.name}".encode())
    job.popen.send_signal(signal.SIGINT)
    wait_gone(pids, SECONDS)
    assert time.monotonic() - started < graceful  # which is how long one signal alone would take
    assert job.finish()[0] == code


def test_closed_stdout_does_not_stop_the_job(mydistrun: Mydistrun) -> None:
    script = mydistrun.script(
        "import sys\n"
        "for _ in range(20000): print('x' * 100)\n"
        "open('done.' + __import__('os').environ['RANK'], 'w').close()\n"
    )
    job = mydistrun.start("-np", "2", script)
    assert job.popen.stdout is not None
    job.popen.stdout.close()
    assert job.popen.wait(30) == 0
    assert {p.name for p in mydistrun.directory.glob("done.*")} == {"done.0", "done.1"}


def test_odd_bytes_and_long_lines_pass(mydistrun: Mydistrun) -> None:
    script = mydistrun.script(
        "import os, sys\nos.write(1, b'\\xff\\xfe\\n')\n"
        "sys.stdout.buffer.write(b'y' * (10 << 20) + b'\\n')\n"
    )
    code, out, _ = mydistrun.run("-np", "1", "--output-filename", "logs", script)
    assert code == 0
    assert out.startswith(b"[0]<stdout>:\xff\xfe\n")
    assert out.count(b"y") == 10 << 20
    raw = (mydistrun.directory / "logs" / "rank.0" / "stdout").read_bytes()
    assert raw == b"\xff\xfe\n" + b"y" * (10 << 20) + b"\n"


START_ERRORS = [
    (["nosuch"], 127, "mydistrun: command 'nosuch' not found in PATH\n"),
    (["./nosuch"], 127, "mydistrun: command './nosuch' not found\n"),
    (["/"], 126, "mydistrun: command '/' is not an executable file\n"),
    (["--nosuch"], 2, "mydistrun: unknown flag '--nosuch' (mydistrun --help lists all)\n"),
    (["-np", "0", "true"], 2, "mydistrun: -np: got '0', expected an integer from 1 to 65536\n"),
]


@pytest.mark.parametrize(("arguments", "code", "text"), START_ERRORS)
def test_start_errors(mydistrun: Mydistrun, arguments: list[str], code: int, text: str) -> None:
    assert mydistrun.run(*arguments) == (code, b"", text)


def test_missing_script(mydistrun: Mydistrun) -> None:
    text = f"mydistrun: script 'no.py' not found in {mydistrun.directory}\n"
    assert mydistrun.run("no.py") == (127, b"", text)
    assert mydistrun.run("-np", "2", sys.executable, "-u", "no.py", "--lr", "1") == (127, b"", text)


@pytest.mark.parametrize(
    "arguments", [[], ["-"], ["-c", "pass"], ["-u", "-m", "no.py"], ["-X", "dev", "no.py"]]
)
def test_python_without_a_script_file_is_left_alone(arguments: list[str]) -> None:
    command = (sys.executable, *arguments)
    assert resolve_command(JobSpec(command, 1, ()), {}) == list(command)


@pytest.mark.parametrize(
    ("name", "code", "text"),
    [
        ("./pipe", 126, "command './pipe' is not an executable file\n"),
        ("pipe", 126, "command 'pipe' cannot be executed: Permission denied\n"),
        ("pipe.py", 127, "script 'pipe.py' not found in "),
    ],
)
def test_a_named_pipe_is_no_command(mydistrun: Mydistrun, name: str, code: int, text: str) -> None:
    os.mkfifo(mydistrun.directory / name, 0o755)
    mydistrun.env["PATH"] = f"{mydistrun.directory}:{mydistrun.env['PATH']}"
    found, out, err = mydistrun.run("-np", "1", name)
    assert (found, out) == (code, b"") and err.startswith(f"mydistrun: {text}")


NO_FILE = "names the interpreter '/no/python3.99', which does not exist"
FIRST_LINES = [
    ("#! /no/python3.99\t-u", f"its first line {NO_FILE}"),
    ("#!{other}", f"the first line of '{{other}}' {NO_FILE}"),
    ("#!{folder}", "its first line names the interpreter '{folder}', which is not an executable "
     "file"),
    ("echo", "its first line does not begin with '#!' and an interpreter"),
    ("", "its first line does not begin with '#!' and an interpreter"),
]  # fmt: skip


@pytest.mark.parametrize("name", ["train.py", "./train.sh", "train"])
@pytest.mark.parametrize(("line", "text"), FIRST_LINES)
def test_missing_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, line: str, text: str
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"folder": str(tmp_path), "other": str(tmp_path / "other")}
    script = tmp_path / name
    for file, first in ((script, line.format(**names)), (tmp_path / "other", "#!/no/python3.99")):
        file.write_text(f"{first}\nprint()\n")
        file.chmod(0o755)
    with pytest.raises(LaunchError) as caught:
        resolve_command(JobSpec((name,), 1, ()), {"PATH": str(tmp_path)})
    assert caught.value.exit_code == 126
    assert str(caught.value).endswith(f" cannot be executed: {text.format(**names)}")
    script.write_text("#!/bin/sh\n")
    assert resolve_command(JobSpec((name,), 1, ()), {"PATH": str(tmp_path)})[0].endswith(
        Path(name).name
    )


@pytest.mark.parametrize("flags", [[], ["--mpi"]])
def test_a_binary_without_its_loader_is_not_called_missing(
    mydistrun: Mydistrun, flags: list[str]
) -> None:
    binary = mydistrun.directory / "binary"
    content = Path(sys.executable).resolve().read_bytes()
    where = content.index(b"/ld-linux")
    binary.write_bytes(content[: where + 1] + b"no" + content[where + 3 :])
    binary.chmod(0o755)
    script = mydistrun.directory / mydistrun.script("#!./binary\n", "script")
    script.chmod(0o755)
    for command, words in (("./binary", "its loader"), ("./script", "the loader")):
        code, out, err = mydistrun.run(*flags, "-np", "2", command)
        assert (code, out) == (126, b"")
        begin = re.escape(f"mydistrun: command '{command}' cannot be executed: {words} '/")
        assert re.fullmatch(rf"{begin}.*/no-\S+'.* does not exist\n", err), err


def test_what_is_no_binary_of_this_machine_is_left_to_the_kernel(tmp_path: Path) -> None:
    whole = Path(sys.executable).resolve().read_bytes()[:4096]
    foreign = bytearray(whole)
    foreign[18:20] = b"\xff\xfe"
    endless = bytearray(whole)
    endless[54:58] = b"\0\0\xff\xff"  # Program headers without a length.
    for content in (b"", b"\x7fELF", whole[:40], foreign, endless, b"\x7fELF" + b"\xff" * 4000):
        file = tmp_path / "binary"
        file.write_bytes(bytes(content))
        assert missing_loader(str(file)) is None


def test_dry_run_hides_values(mydistrun: Mydistrun) -> None:
    mydistrun.env["PYTHONFOO"] = "hidden1"
    code, out, err = mydistrun.run(
        "--dry-run", "-np", "2", "-H", "localhost:1,far:1", "-x", "API_TOKEN=hidden2",
        "-x", "NCCL_DEBUG=WARN", "-x", "OMP_SECRET=hidden3", "-x", "PYTHONPATH=/lib",
        "--log-level", "info", "echo", "a b",
    )  # fmt: skip
    text = out.decode()
    assert (code, err) == (0, "")
    assert "host localhost: directly" in text
    assert "host far: through: ssh -T -o BatchMode=yes -o ConnectTimeout=30 " in text
    assert " -- far " in text
    assert "  rank 1: echo 'a b'" in text
    assert "    API_TOKEN=<redacted>" in text
    assert "    PYTHONFOO=<redacted>" in text
    assert "    OMP_SECRET=<redacted>" in text
    assert "    NCCL_DEBUG=WARN" in text
    assert "    PYTHONPATH=/lib" in text
    assert "    MYDIST_LOG_LEVEL=info" in text
    assert "    MYDIST_CROSS_RANK=1" in text
    assert "hidden" not in text


def test_dry_run_says_once_what_ranks_of_a_host_share(mydistrun: Mydistrun) -> None:
    code, out, err = mydistrun.run("--dry-run", "-np", "3", "--log-level", "info", "echo")
    assert (code, err) == (0, "")
    lines = out.decode().splitlines()
    assert lines[:2] == ["host localhost: directly", "  ranks 0 to 2: echo"]
    assert len(set(lines)) == len(lines)
    assert "    MYDIST_LOG_LEVEL=info" in lines and "    WORLD_SIZE=3" in lines
    assert lines[-3:] == [
        f"  rank {r}: LOCAL_RANK={r} MYDIST_LOCAL_RANK={r} MYDIST_RANK={r} RANK={r}"
        for r in range(3)
    ]


def test_module_and_executable_script(mydistrun: Mydistrun) -> None:
    mydistrun.script("import sys; print('module', *sys.argv[1:])", "mod.py")
    assert mydistrun.run("-np", "1", "-m", "mod", "-x")[1] == b"[0]<stdout>:module -x\n"
    script = mydistrun.directory / mydistrun.script("#!/bin/sh\necho own interpreter\n", "own.py")
    script.chmod(0o755)
    assert mydistrun.run("-np", "1", "own.py")[1] == b"[0]<stdout>:own interpreter\n"


def test_mpirun_ranks(mydistrun: Mydistrun) -> None:
    shell = 'echo "$OMPI_COMM_WORLD_RANK/$OMPI_COMM_WORLD_SIZE $MYDIST_CONTROLLER $ODD"'
    code, out, err = mydistrun.run("--mpi", "-np", "3", "-x", "ODD=a b", "sh", "-c", shell)
    assert (code, err) == (0, "")
    assert sorted(out.splitlines()) == [b"[%d]<stdout>:%d/3 mpi a b" % (r, r) for r in range(3)]


def test_mpirun_failure_names_the_rank(mydistrun: Mydistrun) -> None:
    shell = '[ "$OMPI_COMM_WORLD_RANK" = 1 ] || exec sleep 600; echo because >&2; exit 5'
    code, _, err = mydistrun.run("--mpi", "-np", "2", "sh", "-c", shell)
    assert code == 5
    assert "mydistrun: rank 1 on host localhost exited with code 5" in err
    assert "    | because" in err


def test_mpirun_as_root_asks_for_consent(mydistrun: Mydistrun) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root is asked")
    del mydistrun.env["OMPI_ALLOW_RUN_AS_ROOT"]
    code, _, err = mydistrun.run("--mpi", "-np", "2", "true")
    assert code == 1
    assert "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1" in err


# Rank 0 fails at once because rank 1 leaves, whose own end takes longer.
DEPARTING = """
import os, sys, time
tag = os.environ["MYDIST_FAILURE_TAG"]
if os.environ["MYDIST_RANK"] == "0":
    record = '{"type": "AbortedError", "code": "ABORTED", "ranks": [1]}'
    os.write(2, f"\\x1e{tag}{record}\\n".encode())
    sys.exit(1)
time.sleep(1.5)
sys.exit(7)
"""


def test_the_rank_that_the_others_failed_of_has_time_to_end(mydistrun: Mydistrun) -> None:
    code, _, err = mydistrun.run("-np", "2", mydistrun.script(DEPARTING))
    assert code == 7, err
    assert "rank 1 on host localhost" in err and "exited with code 7" in err.splitlines()[0], err
