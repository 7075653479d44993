"""The faults and the planes that are measured. A new fault or plane is one more row."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from multiproc.job import OVER_TCP, backend_environment

NP = 4
LAST = NP - 1
# Seconds that a rank waits for others before it warns or raises, where a fault is about that.
WAIT_S = 2.0
TENSOR = "x"


class Phase(Enum):
    """Where the fault strikes."""

    BETWEEN = "between"  # The others wait in a collective that the victim has not begun.
    INSIDE = "inside"  # All ranks reduce a large tensor again and again.
    AT_POINT = "at"  # At a failpoint of the victim, which counts how often it comes there.


class Act(Enum):
    """What happens to the victim."""

    KILL = "SIGKILL"
    SEGV = "SIGSEGV"
    STOP = "SIGSTOP"
    RAISE = "raise"
    LEAVE = "leave"
    WITHHOLD = "withhold"  # The victim submits nothing for a while.
    KILL_LAUNCHER = "kill mydistrun"
    DELAY = "delay"  # The victim is late for a while, which is no fault at all.

    @property
    def is_signal(self) -> bool:
        """Whether the measuring process sends the victim a signal of that name."""
        return self in (Act.KILL, Act.SEGV, Act.STOP)


class Point(Enum):
    """The failpoints; csrc/base/failpoint.h says where they are."""

    NEGOTIATE = "negotiate"
    FUSE = "fuse"
    COPY_IN = "copy_in"
    REDUCE = "reduce"
    COPY_OUT = "copy_out"
    CALLBACK = "callback"
    SHUTDOWN = "shutdown"


class Collective(Enum):
    """What the ranks call, all with the same tensors; worker.py has the calls."""

    ALLREDUCE = "allreduce"
    GROUPED = "grouped_allreduce"
    ALLGATHER = "allgather"
    BROADCAST = "broadcast"
    ALLTOALL = "alltoall"
    REDUCESCATTER = "reducescatter"
    BARRIER = "barrier"
    JOIN = "join"

    @property
    def operation(self) -> str:
        """As errors name it."""
        return "allreduce" if self is Collective.GROUPED else self.value

    @property
    def quoted_tensor(self) -> str:
        """How the name of its tensor begins in quotes; with the last quote where it is known."""
        begins = {Collective.BARRIER: "'barrier.", Collective.GROUPED: f"'{TENSOR}."}
        return "" if self is Collective.JOIN else begins.get(self, f"'{TENSOR}'")

    @property
    def freezes(self) -> bool:
        """Whether the schedule freezes when it is called again and again."""
        return self is not Collective.JOIN


@dataclass(frozen=True)
class Fault:
    """One row of the table.

    `errors` are the exceptions that survivors may raise; none: they go on. `says` is a regular
    expression for mydistrun's report, with {victim} for the rank. `code` is the exit code of the
    job; None: any but 0. `goal_s` is the most that a report should take.
    """

    key: str
    title: str
    phase: Phase
    act: Act
    victim: int = LAST
    errors: tuple[str, ...] = ("PeerLostError",)
    says: str = ""
    code: int | None = None
    goal_s: float = 1.0
    env: Mapping[str, str] = field(default_factory=dict)
    collective: Collective = Collective.ALLREDUCE
    point: Point | None = None
    at_pass: int = 1

    @property
    def failpoint(self) -> str:
        """The value of MYDIST_FAILPOINT for the victim; empty: none."""
        if self.point is None:
            return ""
        act = _POINT_ACTS[self.act]
        return f"{self.point.value}:{self.at_pass}:{act}"

    @property
    def after_s(self) -> float:
        """The seconds of the settings, which the time to report does not count."""
        return WAIT_S if self.act in (Act.STOP, Act.WITHHOLD) else 0.0

    @property
    def survivors(self) -> tuple[int, ...]:
        """The ranks that are to report."""
        if self.act in (Act.KILL_LAUNCHER, Act.DELAY):
            return ()
        return tuple(rank for rank in range(NP) if rank != self.victim)

    @property
    def report_count(self) -> int:
        """How many reports there should be; the end of all processes counts as one."""
        return 1 if self.act is Act.KILL_LAUNCHER else len(self.survivors)

    @property
    def may_stay_silent(self) -> bool:
        """Whether survivors are on their way out, and need not report anything."""
        return self.point is Point.SHUTDOWN


DELAY_MS = 300
_POINT_ACTS = {
    Act.KILL: "kill",
    Act.SEGV: "segv",
    Act.STOP: "stop",
    Act.RAISE: "raise",
    Act.LEAVE: "exit",
    Act.DELAY: f"delay_{DELAY_MS}",
}


@dataclass(frozen=True)
class Plane:
    """One column of the table: how the job starts and what its ranks talk through."""

    key: str
    title: str
    backend: str
    env: Mapping[str, str]
    per_host: int = NP  # Ranks of each pretended host.
    freezes: bool = True
    ends_survivors: bool = False  # mpirun ends them when a rank dies, perhaps before they know.

    def host_of(self, rank: int) -> str:
        """The name that messages have for the host of a rank."""
        if self.per_host < NP:
            return f"host{rank // self.per_host}"
        return socket.gethostname() if self.backend == "mpi" else "localhost"

    def knows_end(self, rank: int, victim: int) -> bool:
        """Whether the rank learns how the victim has ended: mydistrun tells all ranks that it has
        started itself, and the kernel those of one host."""
        return self.backend != "mpi" or self.host_of(rank) == self.host_of(victim)


SHUTDOWN = {"MYDIST_STALL_SHUTDOWN_SECONDS": str(WAIT_S)}
_WARNING = {"MYDIST_STALL_WARNING_SECONDS": str(WAIT_S)}
_HOSTS = {"TEST_RANKS_PER_HOST": str(NP // 2)}

KILLED = r"rank {victim} on host \S+ \(pid {pid}\) was killed by "
LEFT = r"rank {victim} on host \S+ (\(pid {pid}\) )?left the job"
NO_ANSWER = r"^mydistrun: rank {victim} on host \S+ (\(pid {pid}\) )?gave no answer\b"
NOT_FINALIZED = r"rank {victim} on host \S+ .*ended without finalizing MPI"
EXITED = r"rank {victim} on host \S+ \(pid {pid}\) exited with code"


def _killed(key: str, title: str, phase: Phase, victim: int, act: Act = Act.KILL) -> Fault:
    name, code = ("SIGSEGV", 139) if act is Act.SEGV else ("SIGKILL", 137)
    return Fault(key, title, phase, act, victim, says=KILLED + name, code=code)


def _stopped(key: str, title: str, phase: Phase, victim: int) -> Fault:
    errors = ("CollectiveTimeoutError",)
    return Fault(key, title, phase, Act.STOP, victim, errors, NO_ANSWER, 1, 0.3, SHUTDOWN)


def _silent(key: str, title: str, phase: Phase, victim: int) -> Fault:
    # Heartbeats find it; no stall setting ends the job.
    says = r"rank {victim} on host \S+ (\(pid {pid}\) )?gave no sign of life"
    env = {"MYDIST_HEARTBEAT_TIMEOUT_SECONDS": str(WAIT_S)}
    return Fault(key, title, phase, Act.STOP, victim, says=says, code=1, goal_s=0.3, env=env)


FAULTS = (
    _killed("sigkill-inside", "SIGKILL in a collective", Phase.INSIDE, LAST),
    _killed("sigkill-between", "SIGKILL between collectives", Phase.BETWEEN, LAST),
    _killed("sigkill-inside-rank0", "SIGKILL of rank 0 in a collective", Phase.INSIDE, 0),
    _killed("sigkill-between-rank0", "SIGKILL of rank 0 between collectives", Phase.BETWEEN, 0),
    _silent("silent-inside", "SIGSTOP in a collective, heartbeats", Phase.INSIDE, 1),
    _silent("silent-between", "SIGSTOP between collectives, heartbeats", Phase.BETWEEN, 1),
    _killed("sigsegv-inside", "SIGSEGV in a collective", Phase.INSIDE, LAST, Act.SEGV),
    Fault(
        "exception",
        "Python exception",
        Phase.BETWEEN,
        Act.RAISE,
        errors=("AbortedError",),
        says=EXITED + r" 1(.*\n)*?.*broken on purpose",
        code=1,
    ),
    Fault(
        "exit",
        "`sys.exit(0)` too early",
        Phase.BETWEEN,
        Act.LEAVE,
        errors=("AbortedError",),
        # mpirun tells no exit code of a rank that ends with 0.
        says=rf"({EXITED} 0|{LEFT}).*, while other ranks still needed it",
    ),
    _stopped("sigstop-inside", "SIGSTOP in a collective", Phase.INSIDE, LAST),
    _stopped("sigstop-between", "SIGSTOP between collectives", Phase.BETWEEN, LAST),
    _stopped("sigstop-inside-rank0", "SIGSTOP of rank 0 in a collective", Phase.INSIDE, 0),
    _stopped("sigstop-between-rank0", "SIGSTOP of rank 0 between collectives", Phase.BETWEEN, 0),
    Fault(
        "withhold",
        "a tensor is not submitted: warning",
        Phase.BETWEEN,
        Act.WITHHOLD,
        errors=(),
        code=0,
        goal_s=0.3,
        env=_WARNING,
    ),
    Fault(
        "launcher",
        "SIGKILL of `mydistrun`: last process gone",
        Phase.INSIDE,
        Act.KILL_LAUNCHER,
        code=-9,
        goal_s=5.0,
    ),
)

PLANES = (
    Plane("frozen", "shared memory", "local", backend_environment("local")),
    Plane(
        "negotiated",
        "shared memory, negotiated",
        "local",
        {**backend_environment("local"), "MYDIST_FREEZE_AFTER": "0"},
        freezes=False,
    ),
    Plane("gloo", "Gloo, two hosts", "gloo", _HOSTS, NP // 2),
    Plane("mpi", "MPI, two hosts", "mpi", _HOSTS | OVER_TCP, NP // 2, ends_survivors=True),
    Plane(
        "flat",
        "MPI, no shared memory",
        "mpi",
        backend_environment("mpi") | OVER_TCP,
        freezes=False,
        ends_survivors=True,
    ),
)
