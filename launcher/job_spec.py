"""JobSpec: everything the launcher knows about a job before it starts, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from mydist.launcher.hosts import Host


@dataclass(frozen=True)
class SshOptions:
    """How remote hosts are reached. The timeouts are in seconds; `host_timeout` is how long
    a host that answered once may be silent before it is taken for lost.

    `loopback_too` also sends every host but "localhost" through ssh, which lets one machine stand
    for several.
    """

    port: int | None = None
    identity_file: str | None = None
    extra_args: tuple[str, ...] = ()
    remote_python: str = ""
    start_timeout: float = 30.0
    host_timeout: float = 10.0
    loopback_too: bool = False


@dataclass(frozen=True)
class OutputOptions:
    """Where the output of the ranks goes besides the terminal."""

    directory: Path | None = None
    timestamps: bool = False


@dataclass(frozen=True)
class ElasticOptions:
    """An elastic job: ranks come and go. Times are in seconds.

    `discovery` is the command that prints the hosts; empty: `JobSpec.hosts` are those there are.
    """

    min_np: int
    max_np: int
    discovery: tuple[str, ...] = ()
    slots_per_host: int = 1
    reset_limit: int | None = None
    timeout: float = 600.0
    cooldown: tuple[float, float] = (0.5, 60.0)


@dataclass(frozen=True)
class JobSpec:
    """One job. `tunables` maps MYDIST_* names to values given by flag or config file;
    `exported` holds `-x` (None = the value it has in the launcher's environment); `stop_timeout` is
    how many seconds the ranks have between a SIGTERM that mydistrun got and SIGKILL; `servers`
    counts server processes, on `server_hosts` (empty: where ranks run); `elastic` is None where the
    number of ranks is fixed; `failure_tag` marks what
    ranks say of their failures (failure_record.py); `warnings` are for the user, before the job
    starts.
    """

    command: tuple[str, ...]
    num_proc: int
    hosts: tuple[Host, ...]
    hosts_given: bool = False
    module: str | None = None
    controller: str | None = None
    tunables: dict[str, str] = field(default_factory=dict)
    exported: dict[str, str | None] = field(default_factory=dict)
    network_interfaces: tuple[str, ...] = ()
    ssh: SshOptions = SshOptions()
    output: OutputOptions = OutputOptions()
    mpi_args: tuple[str, ...] = ()
    stop_timeout: float = 2.5
    servers: int = 0
    server_hosts: tuple[Host, ...] = ()
    elastic: ElasticOptions | None = None
    verbose: bool = False
    dry_run: bool = False
    failure_tag: str = ""
    warnings: tuple[str, ...] = ()

    def is_local(self, host: Host) -> bool:
        """Whether the children of the host are started directly rather than through ssh."""
        if self.ssh.loopback_too and host.name != "localhost":
            return False
        return host.is_local()
