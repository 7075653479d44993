"""What a user writes: hosts, flags, a config file and the values of settings."""

from __future__ import annotations

from fuzz.python.target import OneFile, Target, as_text, expect, expect_one_line
from mydist.launcher.errors import UsageError
from mydist.launcher.flags import FLAGS, parse_flags
from mydist.launcher.hosts import (
    MAX_SLOTS,
    Host,
    format_entry,
    parse_host_list,
    parse_hostfile,
    parse_server_hosts,
)
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.settings import SETTINGS, make_job_spec, read_config_file

_FILE = OneFile()
# No program of this machine is asked for the number of GPUs.
_ENVIRONMENT = {"PATH": "/nonexistent"}
_COMMAND = ["python", "train.py"]


def _expect_hosts(hosts: tuple[Host, ...]) -> None:
    expect(bool(hosts), "there is a host")
    expect(all(1 <= host.slots <= MAX_SLOTS for host in hosts), "slots are within bounds")
    expect(len({host.name for host in hosts}) == len(hosts), "each host is there once")
    again = parse_host_list(",".join(map(format_entry, hosts)))
    expect(again == hosts, f"{hosts} survive, got {again}")


def _expect_job(spec: JobSpec) -> None:
    expect(spec.num_proc >= 1, "there is a rank")
    _expect_hosts(spec.hosts)
    expect(sum(host.slots for host in spec.hosts) >= spec.num_proc, "each rank has a slot")
    texts = [*spec.tunables.values(), *spec.tunables, *spec.exported]
    expect(all("\0" not in text for text in texts), "an environment can hold it")


def host_list(data: bytes) -> None:
    """-H, and the same as --server-hosts."""
    try:
        hosts = parse_host_list(as_text(data))
    except UsageError as error:
        return expect_one_line(error)
    _expect_hosts(hosts)
    try:
        expect(all(parse_server_hosts(as_text(data), hosts)), "servers have a host")
    except UsageError as error:
        return expect_one_line(error)


def hostfile(data: bytes) -> None:
    """--hostfile."""
    try:
        hosts = parse_hostfile(_FILE.holding(data))
    except UsageError as error:
        return expect_one_line(error)
    _expect_hosts(hosts)


def config_file(data: bytes) -> None:
    """--config-file, and the job that it makes."""
    path = _FILE.holding(data)
    try:
        loaded = read_config_file(path)
        expect(
            loaded.keys() <= {flag.key for flag in FLAGS} | {"gpu-ipc", "cuda-aware-mpi"}, "keys"
        )
        if "hostfile" in loaded:
            return  # Of this machine.
        spec = make_job_spec({"config-file": path}, _COMMAND, _ENVIRONMENT)
    except UsageError as error:
        return expect_one_line(error)
    _expect_job(spec)


def command_line(data: bytes) -> None:
    """Arguments, each with a null byte behind it."""
    try:
        parsed = parse_flags([as_text(argument) for argument in data.split(b"\0")])
        if parsed.values.keys() & {"hostfile", "config-file"}:
            return  # Of this machine.
        spec = make_job_spec(parsed.values, parsed.command, _ENVIRONMENT)
    except UsageError as error:
        return expect_one_line(error)
    _expect_job(spec)


def environment(data: bytes) -> None:
    """Values of settings, each with a null byte behind it; its first byte chooses the setting."""
    variables = dict(_ENVIRONMENT)
    for entry in filter(None, data.split(b"\0")):
        variables[SETTINGS[entry[0] % len(SETTINGS)]] = as_text(entry[1:])
    try:
        spec = make_job_spec({"num-proc": 2}, _COMMAND, variables)
    except UsageError as error:
        return expect_one_line(error)
    _expect_job(spec)


_CONFIG = b"""\
# a job
num-proc: 4
hosts: "a:2,b:2"
cycle: 3
fusion-threshold-mb: 0.5
mpi-args: '--mca btl "self,tcp"'
verbose: true
"""

TARGETS = (
    Target(
        "host_list",
        host_list,
        (b"h1:4,h2", b"user@[fe80::1%eth0]:2,localhost:1", b"[::1]", b"a.b-c_d:65536"),
    ),
    Target(
        "hostfile", hostfile, (b"# all\nh1 slots=4\nh2:2\n[fd00::7] slots=1\n", b"h1\n\nh2 # x\n")
    ),
    Target(
        "config_file",
        config_file,
        (
            _CONFIG,
            b"{num_proc: 2, gloo: yes, network-interfaces: 'eth0,eth1'}",
            b"a: &a [1]\nb: *a\n",
            b"num-proc: 0x10\nstop-timeout: 1e1\n",
        ),
    ),
    Target(
        "command_line",
        command_line,
        (
            b"-np\x004\x00-H\0a:2,b:2\0python\0train.py",
            b"--fusion-threshold-mb=32\0-x\0A=b\0--no-verbose\0--\0true",
            b"-m\0pkg.train\0--lr\x000.1",
            b"--mpi\0--mpi-args=--mca a 'b c'\0--stop-timeout\x003\0true",
        ),
    ),
    Target(
        "environment",
        environment,
        tuple(
            bytes([number]) + value for number in range(len(SETTINGS)) for value in (b"1", b"auto")
        )
        + (b"\x001\0\x0132\0\x020",),
    ),
)
