"""Every wrong input has one error with an exact text, and starts nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running_job import Mydistrun
from soon import soon

from mydist.launcher.cli import main
from mydist.launcher.errors import UsageError
from mydist.launcher.flags import parse_flags
from mydist.launcher.settings import make_job_spec

LEVELS = "trace, debug, info, warning, error or off"
NAMES = "letters, digits, '.', '_' and '-' are allowed"
SLOTS = "slots must be an integer from 1 to 65536"
ALL = "(mydistrun --help lists all)"

# (arguments before "-- true", environment, text)
BAD: list[tuple[list[str], dict[str, str], str]] = [
    (["--nump-proc", "2"], {}, f"unknown flag '--nump-proc'; did you mean --num-proc? {ALL}"),
    (["--fusion-treshold-mb=1"], {},
     f"unknown flag '--fusion-treshold-mb=1'; did you mean --fusion-threshold-mb? {ALL}"),
    (["--no-mpi"], {}, f"unknown flag '--no-mpi'; did you mean --mpi? {ALL}"),
    (["--no-hierarchical-allreduce=1"], {},
     "unknown flag '--no-hierarchical-allreduce=1'; did you mean --no-hierarchical-allreduce? "
     f"{ALL}"),
    (["-np", "0"], {}, "-np: got '0', expected an integer from 1 to 65536"),
    (["-np", "٣"], {}, "-np: got '٣', expected an integer from 1 to 65536"),
    (["--num_proc="], {}, "--num_proc: got '', expected an integer from 1 to 65536"),
    (["-np", "1", "-np", "2"], {}, "-np is given twice with different values; keep one"),
    (["--stop-timeout", "0"], {},
     "--stop-timeout: got '0', expected a number of seconds from 0.1 to 86400"),
    (["--heartbeat-timeout-seconds", "0.09"], {},
     "--heartbeat-timeout-seconds: got '0.09', expected 0 or a number of seconds from 0.1 to "
     "1000000"),
    (["--log-level", "loud"], {}, f"--log-level: got 'loud', expected {LEVELS}"),
    (["--fusion-threshold-mb", "-1"], {},
     "--fusion-threshold-mb: got '-1', expected a number from 0 to 1048576"),
    (["--timeline-filename", ""], {},
     "--timeline-filename: got '', expected a path of at most 4095 bytes"),
    (["--mpi=maybe"], {}, "--mpi: got 'maybe', expected 0, 1, true or false"),
    (["--mpi", "--gloo"], {}, "--mpi and --gloo exclude each other; give one or none of them"),
    (["--mpi-args", "'open"], {},
     "--mpi-args: got \"'open\", expected words quoted as in a shell (No closing quotation)"),
    (["--network-interfaces", "../x"], {},
     "--network-interfaces: got '../x', "
     "expected names of 1 to 15 characters, separated by commas"),
    (["-x", "1A=2"], {}, "-x '1A': not a variable name; expected NAME or NAME=VALUE"),
    (["-x", "RANK=2"], {}, "-x RANK: mydistrun sets this variable itself; remove it"),
    (["-x", "UNSET"], {}, "-x UNSET: not set here; export it first or give -x UNSET=VALUE"),
    (["-x", "MYDIST_CACHE_CAPACITY=64 "], {},
     "-x MYDIST_CACHE_CAPACITY: got '64 ', expected an integer from 0 to 1000000"),
    (["-x", "MYDIST_CONTROLLER=mpi"], {},
     "-x MYDIST_CONTROLLER=mpi: mydistrun itself needs this setting; give --mpi or export "
     "MYDIST_CONTROLLER"),
    (["--mpi", "-x", "MYDIST_CONTROLLER=gloo"], {},
     "-x MYDIST_CONTROLLER=gloo: mydistrun itself needs this setting; give --gloo or export "
     "MYDIST_CONTROLLER"),
    (["-x", "A=1", "-x", "A=2"], {}, "-x A: given twice; keep one of them"),
    (["-H", ""], {}, "-H: got '', expected a text that is not empty"),
    (["-H", "a:1,"], {}, "-H 'a:1,': empty host entry; expected name:slots separated by commas"),
    (["-H", "a:0"], {}, f"-H 'a:0': 'a:0': {SLOTS}, got '0'"),
    (["-H", "a:99999"], {}, f"-H 'a:99999': 'a:99999': {SLOTS}, got '99999'"),
    (["-H", "-oProxyCommand=touch x:1"], {},
     "-H '-oProxyCommand=touch x:1': host '-oProxyCommand=touch x:1' starts with '-'; "
     "a host name may not"),
    (["-H", "b@-x:1"], {}, f"-H 'b@-x:1': 'b@-x' is not a host name; {NAMES}"),
    (["-H", "a;reboot:1"], {}, f"-H 'a;reboot:1': 'a;reboot' is not a host name; {NAMES}"),
    (["-H", f"{'a' * 254}:1"], {},
     f"-H '{'a' * 100}'…: '{'a' * 100}'…: got a name of 254 bytes, at most 253 are allowed"),
    (["-H", "[fe80::1%interface_number_1]:1"], {},
     "-H '[fe80::1%interface_number_1]:1': '[fe80::1%interface_number_1]:1': "
     "'interface_number_1' is not an interface name"),
    (["-np", "99", "-H", ",".join(f"h{i}" for i in range(9))], {},
     "-np 99: the hosts h0:1,h1:1,h2:1,h3:1,h4:1,h5:1,h6:1,h7:1,… (9 in all) have only 9 slots; "
     "add slots or hosts, or use -np 9"),
    (["-H", "fe80::1:4"], {},
     "-H 'fe80::1:4': 'fe80::1:4': write an IPv6 address in brackets, e.g. [fe80::1]:4"),
    (["-H", "[::1]4"], {}, "-H '[::1]4': '[::1]4': expected ':slots' after ']', got '4'"),
    (["-H", "[fe80::1%e;x]:1"], {},
     "-H '[fe80::1%e;x]:1': '[fe80::1%e;x]:1': 'e;x' is not an interface name"),
    (["-H", "a:1,b:2,a:3"], {},
     "-H: host 'a' is listed twice; give one entry with all its slots, e.g. a:4"),
    (["-np", "5", "-H", "a:1,[::1]:2"], {},
     "-np 5: the hosts a:1,[::1]:2 have only 3 slots; add slots or hosts, or use -np 3"),
    (["-H", "a:1", "--hostfile", "f"], {},
     "-H and --hostfile exclude each other; give one of them"),
    (["--servers", "0"], {}, "--servers: got '0', expected an integer from 1 to 1024"),
    ([], {"MYDIST_SERVERS": "many"},
     "MYDIST_SERVERS: got 'many', expected an integer from 1 to 1024"),
    (["--servers", "2", "--mpi"], {},
     "--servers: mpirun starts ranks only; leave --mpi out, or export MYDIST_SERVERS in place of "
     "the flag. Then threads of the first ranks are the servers"),
    (["--server-hosts", "a", "--mpi"], {},
     "--server-hosts: mpirun starts ranks only; leave --mpi out, or export MYDIST_SERVERS in "
     "place of the flag. Then threads of the first ranks are the servers"),
    (["--server-hosts", "a,b;c"], {},
     f"--server-hosts 'a,b;c': 'b;c' is not a host name; {NAMES}"),
    (["--server-hosts", "a,"], {},
     "--server-hosts 'a,': empty entry; expected names separated by commas"),
    (["--server-hosts", "[::1]:2"], {},
     "--server-hosts '[::1]:2': '[::1]:2': a server takes no slot; write the host alone"),
    (["--server-hosts", "a,b,a"], {},
     "--server-hosts 'a,b,a': host 'a' is listed twice; servers are spread over the hosts in "
     "turn, so list each once"),
    (["--hostfile", "/no/such"], {},
     "--hostfile '/no/such': cannot read it: No such file or directory"),
    (["--hostfile", "/dev/zero"], {},
     "--hostfile '/dev/zero': got a device, expected a regular file"),
    (["-i", "/no/key"], {}, "-i '/no/key': no such file; expected an ssh private key"),
    ([], {"MYDIST_SHARED_MEMORY": "True"},
     "MYDIST_SHARED_MEMORY: got 'True', expected 0, 1, true or false"),
    ([], {"MYDIST_PLUGINS": "a::b"},
     "MYDIST_PLUGINS: got 'a::b', expected paths of libraries, separated by colons"),
    ([], {"MYDIST_PLUGINS": "/no/such.so"}, "MYDIST_PLUGINS: '/no/such.so' is not a file"),
    (["-x", "MYDIST_PLUGINS=/no/such.so"], {}, "MYDIST_PLUGINS: '/no/such.so' is not a file"),
    ([], {"MYDIST_ALGORITHM": "flat "},
     "MYDIST_ALGORITHM: got 'flat ', expected auto, shared_memory, hierarchical or flat"),
    ([], {"MYDIST_ALGORITHM": "Mine", "MYDIST_PLUGINS": "mine.so"},
     "MYDIST_ALGORITHM: got 'Mine', expected a name of up to 64 small letters, digits, '_' and "
     "'-'"),
    ([], {"MYDIST_CONTROLLER": "tcp"},
     "MYDIST_CONTROLLER: got 'tcp', expected auto, local, mpi or gloo"),
]  # fmt: skip

BAD_HOSTFILES = [
    ("", "--hostfile {!r}: lists no host; expected lines like 'host1 slots=4'"),
    ("# nothing\n\n", "--hostfile {!r}: lists no host; expected lines like 'host1 slots=4'"),
    ("a slots=2\nb cpus=2\n", "{}:2: got 'b cpus=2', expected 'name slots=N' or 'name:N'"),
    ("a slots=2 x\n", "{}:1: got 'a slots=2 x', expected 'name slots=N' or 'name:N'"),
    ("a slots=\n", "{}:1: 'a': " + SLOTS + ", got ''"),
    ("a:2 slots=2\n", "{}:1: 'a:2 slots=2' gives the slots twice; keep one of them"),
    ("a\na\n",
     "--hostfile {!r}: host 'a' is listed twice; give one entry with all its slots, e.g. a:2"),
    ("-x slots=1\n", "{}:1: host '-x' starts with '-'; a host name may not"),
]  # fmt: skip

BAD_CONFIGS = [
    ("num-procs: 2", "--config-file {!r}: unknown key 'num-procs'; did you mean num-proc?"),
    ("x: A=1", "--config-file {!r}: unknown key 'x'"),
    ("num-proc: 0", "--config-file {!r}: num-proc: got '0', expected an integer from 1 to 65536"),
    ("num-proc: true", "--config-file {!r}: num-proc: got True, expected a value N"),
    ("num-proc:", "--config-file {!r}: num-proc: got None, expected a value N"),
    ("mpi: 1", "--config-file {!r}: mpi: got 1, expected true or false"),
    ("servers: 1.5", "--config-file {!r}: servers: got '1.5', expected an integer from 1 to 1024"),
    ("mpi: true\ngloo: true", "--mpi and --gloo exclude each other; give one or none of them"),
    (
        "num-proc: [1, 2, 3, 4, 5, 6, 7]",
        "--config-file {!r}: num-proc: got [1, 2, 3, 4, 5, 6, ...], expected a value N",
    ),
    ("- a", "--config-file {!r}: got a list, expected a mapping such as 'num-proc: 4'"),
    ("just text", "--config-file {!r}: got a str, expected a mapping such as 'num-proc: 4'"),
]


def spec_error(arguments: list[str], environment: dict[str, str]) -> str:
    with soon(), pytest.raises(UsageError) as caught:
        parsed = parse_flags([*arguments, "--", "true"])
        make_job_spec(parsed.values, parsed.command, environment)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(("arguments", "environment", "text"), BAD)
def test_error_text(arguments: list[str], environment: dict[str, str], text: str) -> None:
    assert spec_error(arguments, environment) == text


@pytest.mark.parametrize(("content", "text"), BAD_HOSTFILES)
def test_hostfile_error_text(content: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text(content)
    assert spec_error(["--hostfile", str(file)], {}) == text.format(str(file))


def test_hostfile_of_arbitrary_bytes(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(b"\xff\xfe\x00")
    expected = f"--hostfile {str(file)!r}: not a text file (invalid UTF-8)"
    assert spec_error(["--hostfile", str(file)], {}) == expected


@pytest.mark.parametrize(("content", "text"), BAD_CONFIGS)
def test_config_file_error_text(content: str, text: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "job.yaml"
    file.write_text(content)
    assert spec_error(["--config-file", str(file)], {}) == text.format(str(file))


@pytest.mark.parametrize("content", [b"a: [", b"\xff\xff", b"a: !!python/object:os.system x"])
def test_config_file_that_is_no_yaml(content: bytes, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "job.yaml"
    file.write_bytes(content)
    text = spec_error(["--config-file", str(file)], {})
    assert text.startswith(f"--config-file {str(file)!r}: not valid YAML: ")
    assert "\n" not in text


def test_config_file_whose_aliases_grow_without_end(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    file = tmp_path / "job.yaml"
    rows = [f"  - &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 30)]
    file.write_text("\n".join(["num-proc:", "  - &a0 [x]", *rows]))
    text = spec_error(["--config-file", str(file)], {})
    assert text.startswith(f"--config-file {str(file)!r}: num-proc: got [[...], ")
    assert len(text) < 1000


@pytest.mark.parametrize("flag", ["--hostfile", "--config-file"])
def test_a_named_pipe_is_refused_at_once(flag: str, tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert main([flag, str(pipe), "-np", "1", "true"], {}) == 2
    expected = f"{flag} {str(pipe)!r}: got a named pipe, expected a regular file"
    assert spec_error([flag, str(pipe)], {}) == expected


def test_a_file_over_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_bytes(b"#" * ((1 << 20) + 1))
    expected = f"--hostfile {str(file)!r}: larger than 1048576 bytes, which is the limit"
    assert spec_error(["--hostfile", str(file)], {}) == expected


def test_the_pipe_of_a_shell_is_read(mydistrun: Mydistrun) -> None:
    command = [sys.executable, "-m", "mydist.launcher", "--dry-run", "--hostfile", "/dev/fd/3"]
    script = 'exec 3< <(echo "a slots=1"); exec "$@"'
    done = subprocess.run(
        ["bash", "-c", script, "bash", *command, "true"],
        env=mydistrun.env,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == b"" and done.stdout.startswith(b"host a: through: ssh ")


def test_the_pipe_of_a_shell_is_read_up_to_the_limit() -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        path = f"/dev/fd/{endless.stdout.fileno()}"
        expected = f"--hostfile {path!r}: larger than 1048576 bytes, which is the limit"
        assert spec_error(["--hostfile", path], {}) == expected
        endless.stdout.close()


def test_a_deleted_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["-np", "1", "true"], {}) == 2
    assert capsys.readouterr().err == (
        "mydistrun: the working directory does not exist any more (No such file or directory); "
        "change to an existing directory\n"
    )


def test_a_reader_that_leaves_is_no_traceback(mydistrun: Mydistrun) -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    job = mydistrun.start("--help", stdout=write_end)
    os.close(write_end)
    assert job.finish() == (128 + signal.SIGPIPE, "")


def test_config_file_without_the_yaml_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "yaml", None)
    expected = "--config-file needs the package PyYAML; install it with: pip install PyYAML"
    assert spec_error(["--config-file", str(tmp_path / "x")], {}) == expected


@pytest.mark.parametrize("flag", ["-np", "-H", "--hostfile", "-x", "--log-level", "-m"])
def test_flag_without_its_value(flag: str) -> None:
    with pytest.raises(UsageError, match=rf"^{flag} needs a value: {flag} "):
        parse_flags([flag])


def test_no_command() -> None:
    with pytest.raises(UsageError) as caught:
        make_job_spec({}, (), {})
    assert str(caught.value).startswith(
        "no command given; expected mydistrun [FLAGS] COMMAND [ARGS…]"
    )
