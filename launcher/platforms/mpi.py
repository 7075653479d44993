"""`--mpi`: the ranks are started by Open MPI's mpirun, which stands for all of them.

mpirun's tags are taken off its output again, so that output files, prefixes and the failure report
look the same as without --mpi. Values of variables travel in mpirun's environment, only their names
(`-x NAME`) on its command line.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import signal
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

from mydist.launcher.check_build import library_path
from mydist.launcher.children import Children
from mydist.launcher.command import remote_command, resolve_command
from mydist.launcher.dry_run import AT_START, variable_lines
from mydist.launcher.endpoints import first_interface
from mydist.launcher.environment import (
    environment_here,
    environment_there,
    inherited_environment,
    requested_environment,
)
from mydist.launcher.errors import LaunchError
from mydist.launcher.failure_record import FailureRecord
from mydist.launcher.hosts import Host, format_entry
from mydist.launcher.job_spec import JobSpec
from mydist.launcher.placement import RankPlacement
from mydist.launcher.platforms.mpi_output import Piece, TaggedStream
from mydist.launcher.platforms.platform import Launch
from mydist.launcher.platforms.remote_host import ssh_arguments
from mydist.launcher.process_group import STDERR, STDOUT, ChildCommand, ProcessGroup
from mydist.launcher.report import is_consequence, raised_itself
from mydist.launcher.session import has_children, leaves_ended_children
from mydist.launcher.stop_sequence import Steps

_EXITED = re.compile(r"Process name: \[.*,(\d+)\]\s+Exit code:\s+(\d+)")
_SIGNALLED = re.compile(r"process rank (\d+) with PID \d+ on node \S+ exited on\s+signal (\d+)")
_ABORTED = re.compile(
    r"MPI_ABORT was invoked on rank (\d+)[^\n]*\s+(?:[^\n]*\s+)?with errorcode (\d+)"
)
_IMPROPER = re.compile(r"process rank (\d+) with PID \d+ on\s+node \S+ exiting improperly")
_SHARED_MEMORY = "/dev/shm"
_LOOPBACK = "oob_tcp_if_include"
_MPIRUN = 0  # It is the one child of its group.
_LOOK_S = 0.2  # How often to look whether mpirun has started a process.
_STUCK_LOOK_S = 2.0  # How often to look whether it has missed the end of one,
_STUCK_S = 10.0  # and for how long it may. It takes milliseconds.

# Open MPI 4.1 takes 36 files for 2 ranks of a host, at most 64 for 8 and 96 for 16. Without them it
# stops without a word.
_FILES_OF_MPIRUN = 32
_FILES_OF_A_RANK = 5
_SEGMENT_OF_A_RANK = 16 << 20


def mpirun_command(
    spec: JobSpec, environment: Mapping[str, str], parameters: Mapping[str, str]
) -> list[str]:
    """The complete mpirun command line; holds no value of any variable. `parameters` are MCA's."""
    command = ["mpirun", "-np", str(spec.num_proc), "--tag-output"]
    if spec.hosts_given:
        command += ["-H", ",".join(format_entry(host) for host in spec.hosts)]
    all_local = all(spec.is_local(host) for host in spec.hosts)
    if all_local and spec.num_proc > len(os.sched_getaffinity(0)):
        command.append("--oversubscribe")
    given = set(spec.mpi_args)
    if not given & {"--bind-to", "-bind-to"}:
        command += ["--bind-to", "none"]
    if not given & {"--map-by", "-map-by"}:
        command += ["--map-by", "slot"]
    names = (requested_environment if all_local else environment_there)(spec, environment)
    for name in sorted(names):
        command += ["-x", name]
    if not all_local:
        command += _remote_arguments(spec)
    # mpirun passes on SIGUSR1, SIGUSR2, SIGCONT and SIGTSTP by itself.
    passed_on = {"ess_base_forward_signals": str(int(signal.SIGWINCH))}
    kept = inherited_environment(environment)
    for name, value in {**passed_on, **parameters}.items():
        if name not in given and f"OMPI_MCA_{name}" not in {*kept, *names}:
            command += ["--mca", name, value]
    command += spec.mpi_args
    if all_local:
        return command + resolve_command(spec, environment)
    return command + remote_command(spec)


def _remote_arguments(spec: JobSpec) -> list[str]:
    """How mpirun reaches other hosts: the same ssh arguments and interface as without --mpi."""
    arguments = ssh_arguments(spec.ssh)
    for argument in arguments:
        if not argument or any(character.isspace() for character in argument):
            raise LaunchError(
                f"--mpi: mpirun cannot pass on the ssh argument {argument!r}: mpirun splits it at "
                f"spaces; write it into your ssh configuration instead"
            )
    command = ["--mca", "plm_rsh_args", " ".join(arguments)]
    if spec.network_interfaces:
        name, _ = first_interface(spec.network_interfaces)
        for component in ("oob", "btl"):
            command += ["--mca", f"{component}_tcp_if_include", name]
    return command


def file_parameters(spec: JobSpec, folder: str, segments: str) -> dict[str, str]:
    """Keeps the files of mpirun and the ranks in two folders, which can be removed in any case.

    On other hosts there are no such folders; there mpirun's daemons remove their files. Where all
    ranks are here and share memory, they listen on no port, and mpirun names no other interface.
    """
    if not all(spec.is_local(host) for host in spec.hosts):
        return {}
    found = {"orte_tmpdir_base": folder}
    if segments:
        for component in ("btl_vader", "osc_sm", "osc_rdma"):
            found[f"{component}_backing_directory"] = segments
        if segments == AT_START or fits_in(segments, spec.num_proc):
            found["btl"] = "^tcp,ofi"  # libfabric may choose TCP.
    return {**found, _LOOPBACK: "lo"}


def preloaded(others: str) -> dict[str, str]:
    """The variable that keeps mpirun's own ports on the loopback; Open MPI 4 has no setting for it.

    The library takes itself out of the list, which has `others` in front; ranks do not load it.
    """
    library = str(library_path().with_name("libmydist_mpirun.so"))
    if not os.path.exists(library) or set(library) & {":", " "}:  # They would cut the path.
        return {}
    return {"LD_PRELOAD": f"{others}:{library}" if others else library}


def require_mpirun(environment: Mapping[str, str]) -> None:
    """Raises LaunchError when there is no mpirun or it would refuse to run as root."""
    if shutil.which("mpirun", path=environment.get("PATH", os.defpath)) is None:
        raise LaunchError("--mpi: no mpirun in PATH; install Open MPI, or leave --mpi out")
    consents = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")
    if os.geteuid() == 0 and any(environment.get(name) != "1" for name in consents):
        raise LaunchError(
            "--mpi: Open MPI refuses to run as root unless you agree to it; "
            "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1, "
            "or use another user"
        )


def make_room_for_files(ranks: int) -> None:
    """Raises the limit of open files where mpirun needs more, and the administrator allows it.

    Raises:
        LaunchError: the administrator does not.
    """
    needed = _FILES_OF_MPIRUN + _FILES_OF_A_RANK * ranks
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise LaunchError(
            f"--mpi: mpirun needs {needed} open files for {ranks} ranks, and the limit is {hard}. "
            f"Raise it (ulimit -n {needed}), or leave --mpi out"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def fits_in(folder: str, ranks: int) -> bool:
    """Whether the ranks' shared memory for MPI finds room there."""
    try:
        return shutil.disk_usage(folder).free >= ranks * _SEGMENT_OF_A_RANK
    except OSError:
        return False


def find_failures(text: str) -> dict[int, int]:
    """Rank → status (-N for signal N) of the failures that mpirun's own messages name."""
    found = {int(rank): -int(number) for rank, number in _SIGNALLED.findall(text)}
    for pattern in (_ABORTED, _EXITED):
        found.update({int(rank): int(code) for rank, code in pattern.findall(text)})
    return found


def find_improper(text: str) -> set[int]:
    """The ranks that, as mpirun says, ended without finalizing MPI, e.g. by os._exit()."""
    return {int(rank) for rank in _IMPROPER.findall(text)}


def name_failures(
    named: dict[int, int], failures: Mapping[int, FailureRecord | None]
) -> dict[int, int]:
    """Rank → status of the failures, the first to blame first.

    mpirun names the rank that it saw end first, which may be one that only lost the first cause.
    Then a rank that raised an exception of its own is put before it, with Python's exit code 1.
    `failures` are in the order in which the ranks began to print errors; None: it said nothing.
    """
    if any(code < 0 or not is_consequence(failures.get(rank)) for rank, code in named.items()):
        return named
    raised = [rank for rank, failure in failures.items() if raised_itself(failure)]
    return {raised[0]: 1, **named} if raised else named


class MpiPlatform:
    """The running mpirun. Reports as if it were the ranks themselves. See Platform."""

    # mpirun itself gives the ranks a second before it sends SIGTERM. What they print then is lost,
    # such as the traceback of the error.
    after_timeout: ClassVar[Steps] = ((0.3, signal.SIGTERM), (2.0, signal.SIGKILL))

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        self._spec = launch.spec
        self._events = launch.events
        self._group = ProcessGroup(launch.loop, self, b"", die_gently=True)
        self._streams = {s: TaggedStream(s, self._spec.num_proc) for s in (STDOUT, STDERR)}
        self._hosts: list[Host] = []  # Of the ranks.
        self._pid = 0  # Of mpirun, once it has started.
        self._has_output = False  # Of a rank.
        self._own_lines: list[str] = []
        # The ranks that printed errors, in the order in which they began.
        self._complained: dict[int, None] = {}
        # The ranks that ended without finalizing MPI; their exit codes are unknown.
        self._improper: set[int] = set()

    @staticmethod
    def serves(spec: JobSpec, ranks: Sequence[RankPlacement]) -> bool:
        """Whether the job asks for MPI."""
        return spec.controller == "mpi"

    @staticmethod
    def describe(spec: JobSpec, environment: Mapping[str, str], children: Children) -> list[str]:
        """The command line of mpirun, and what it gives to all ranks."""
        requested = requested_environment(spec, environment)
        parameters = file_parameters(spec, AT_START, AT_START)
        command = mpirun_command(spec, environment, parameters)
        lines = ["mpirun:", f"  {shlex.join(command)}"]
        return lines + list(variable_lines(spec, requested).values())

    async def connect(self, children: Children) -> None:
        """mpirun reaches the hosts itself. Raises LaunchError when it cannot run."""
        self._hosts = [rank.host for rank in children.ranks]
        require_mpirun(self._launch.environment)
        make_room_for_files(sum(map(self._spec.is_local, self._hosts)))

    def start(self, part: range, variables: Mapping[str, str]) -> None:
        """Starts mpirun, and with it all ranks. Raises LaunchError."""
        environment = self._launch.environment
        argv = mpirun_command(self._spec, environment, self._make_folders())
        env = {**environment_here(self._spec, environment), **variables}
        if (_LOOPBACK, "lo") in pairwise(argv):
            env = {**env, **preloaded(env.get("LD_PRELOAD", ""))}
        self._group.start([ChildCommand(_MPIRUN, "mpirun", argv, env, os.getcwd())])
        # A starter of other hosts, as ssh or a batch system's, may be no child of mpirun.
        if all(map(self._spec.is_local, self._hosts)):
            self._check_start(self._launch.loop.time() + self._spec.ssh.start_timeout)
        self._check_stuck(None)

    def _check_start(self, deadline: float) -> None:
        """Ends an mpirun that starts no process and does not exit by itself."""
        loop = self._launch.loop
        if self._has_output or not self._group.alive() or has_children(self._pid):
            return
        if loop.time() < deadline:
            loop.call_later(_LOOK_S, self._check_start, deadline)
            return
        self._events.on_note(
            f"mydistrun: mpirun started no process within {self._spec.ssh.start_timeout:g} s "
            "and was killed; see its output"
        )
        self._group.send_signal(signal.SIGKILL)

    def _check_stuck(self, since: float | None) -> None:
        """Ends an mpirun that does not notice the ends of its children: a stranger may hold it up.

        `since`: when it was first seen not to; None: it was not.
        """
        loop = self._launch.loop
        if self._pid and not self._group.alive():
            return
        now = loop.time()
        limit = min(_STUCK_S, self._spec.ssh.start_timeout)
        if not leaves_ended_children(self._pid):
            since = None
        elif since is None:
            since = now
        elif now - since >= limit:
            self._events.on_note(
                f"mydistrun: mpirun did not notice within {limit:g} s that a process has ended, "
                "and was killed. Another program may have connected to its port"
            )
            self._group.send_signal(signal.SIGKILL)
            return
        loop.call_later(min(_STUCK_LOOK_S, limit), self._check_stuck, since)

    def _make_folders(self) -> dict[str, str]:
        if not file_parameters(self._spec, AT_START, ""):
            return {}
        folder = self._group.make_folder(None)
        has_memory = os.access(_SHARED_MEMORY, os.W_OK | os.X_OK)
        segments = self._group.make_folder(_SHARED_MEMORY) if has_memory else ""
        return file_parameters(self._spec, folder, segments)

    def send_signal(self, signum: int, children: range) -> None:
        """To mpirun, which passes on what can be; SIGKILL goes to everything it started here."""
        self._group.send_signal(signum)

    def tell_end(self, child: int, status: int) -> None:
        """Nothing: mpirun tells of an end when it has ended the other ranks."""

    def pause_output(self, paused: bool) -> None:
        self._group.pause_output(paused)

    def out_of_memory(self) -> bool:
        """False: mpirun does not say on which host a rank ran."""
        return False

    async def close(self) -> None:
        """Kills what is left and frees everything."""
        self._group.close()

    def on_started(self, child: int, pid: int) -> None:
        """mpirun runs; it does not report the pids of the ranks."""
        self._pid = pid
        self._launch.tell(f"mpirun has pid {pid}")

    def on_address(self, child: int, line: bytes) -> None:
        """Never: no server is a child of mpirun."""

    def on_output(self, child: int, stream: int, data: bytes) -> None:
        """Output of mpirun: takes it apart by rank."""
        self._pass_on(stream, *self._streams[stream].feed(data))

    def on_exited(self, child: int, status: int) -> None:
        """mpirun ended, and with it every rank."""
        for stream, tagged in self._streams.items():
            self._pass_on(stream, *tagged.finish())
        for failed, code in self._failures(128 - status if status < 0 else status).items():
            is_first = -code not in (signal.SIGTERM, signal.SIGKILL)
            self._events.on_exited(
                failed, code, is_first=is_first, improper=failed in self._improper
            )
        for other in range(self._spec.num_proc):
            self._events.on_exited(other, 0, unknown=status != 0)

    def _failures(self, code: int) -> dict[int, int]:
        """Rank → status; empty when mpirun's exit code is 0 or no rank is named."""
        if code == 0:
            return {}
        text = "\n".join(self._own_lines)
        self._improper = {r for r in find_improper(text) if r < self._spec.num_proc}
        named = {r: c for r, c in find_failures(text).items() if r < self._spec.num_proc and c}
        for rank in self._improper:
            named.setdefault(rank, code)
        failures = {
            rank: self._events.failure(rank)
            for rank in self._complained
            if self._events.has_complained(rank)
        }
        if named := name_failures(named, failures):
            return named
        own = [rank for rank, failure in failures.items() if not is_consequence(failure)]
        if len(own) == 1:  # mpirun names no rank, but one rank alone complained
            return {own[0]: code}
        text = f"mydistrun: mpirun exited with code {code} and named no rank; see its output above"
        self._events.on_unnamed_failure(code, text)
        return {}

    def _pass_on(self, stream: int, pieces: list[Piece], own_lines: list[bytes]) -> None:
        self._has_output = self._has_output or bool(pieces)
        for rank, piece in pieces:
            self._events.on_output(rank, stream, piece)
            if stream == STDERR:
                self._complained.setdefault(rank)
        for line in own_lines:
            text = line.decode("utf-8", "backslashreplace").rstrip("\r\n")
            if stream == STDERR:
                self._own_lines = [*self._own_lines[-400:], text]
            self._events.on_note(text)
