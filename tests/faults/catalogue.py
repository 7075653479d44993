"""The faults and the planes that are measured. A new fault or plane is one more row."""

from __future__ import annotations

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


class Act(Enum):
    """What happens to the victim."""

    KILL = "SIGKILL"
    SEGV = "SIGSEGV"
    STOP = "SIGSTOP"
    RAISE = "raise"
    LEAVE = "leave"
    WITHHOLD = "withhold"  # The victim submits nothing for a while.
    KILL_LAUNCHER = "kill mydistrun"

    @property
    def is_signal(self) -> bool:
        """Whether the measuring process sends the victim a signal of that name."""
        return self in (Act.KILL, Act.SEGV, Act.STOP)


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

    @property
    def after_s(self) -> float:
        """The seconds of the settings, which the time to report does not count."""
        return WAIT_S if self.act in (Act.STOP, Act.WITHHOLD) else 0.0

    @property
    def survivors(self) -> tuple[int, ...]:
        """The ranks that are to report."""
        if self.act is Act.KILL_LAUNCHER:
            return ()
        return tuple(rank for rank in range(NP) if rank != self.victim)


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
        return "localhost" if self.per_host == NP else f"host{rank // self.per_host}"


_SHUTDOWN = {"MYDIST_STALL_SHUTDOWN_SECONDS": str(WAIT_S)}
_WARNING = {"MYDIST_STALL_WARNING_SECONDS": str(WAIT_S)}
_HOSTS = {"TEST_RANKS_PER_HOST": str(NP // 2)}

_KILLED = r"rank {victim} on host \S+ \(pid {pid}\) was killed by "
_LEFT = r"rank {victim} on host \S+ (\(pid {pid}\) )?left the job"
_EXITED = r"rank {victim} on host \S+ \(pid {pid}\) exited with code"


def _killed(key: str, title: str, phase: Phase, victim: int, act: Act = Act.KILL) -> Fault:
    name, code = ("SIGSEGV", 139) if act is Act.SEGV else ("SIGKILL", 137)
    return Fault(key, title, phase, act, victim, says=_KILLED + name, code=code)


def _stopped(key: str, title: str, phase: Phase, victim: int) -> Fault:
    # mpirun lets it go on before it ends it; then it raises as well.
    errors, says = (
        ("CollectiveTimeoutError",),
        rf"timed out waiting for rank {{victim}}$|{_EXITED} 1",
    )
    return Fault(key, title, phase, Act.STOP, victim, errors, says, 1, 0.3, _SHUTDOWN)


FAULTS = (
    _killed("sigkill-inside", "SIGKILL in a collective", Phase.INSIDE, LAST),
    _killed("sigkill-between", "SIGKILL between collectives", Phase.BETWEEN, LAST),
    _killed("sigkill-inside-rank0", "SIGKILL of rank 0 in a collective", Phase.INSIDE, 0),
    _killed("sigkill-between-rank0", "SIGKILL of rank 0 between collectives", Phase.BETWEEN, 0),
    _killed("sigsegv-inside", "SIGSEGV in a collective", Phase.INSIDE, LAST, Act.SEGV),
    Fault(
        "exception",
        "Python exception",
        Phase.BETWEEN,
        Act.RAISE,
        errors=("AbortedError",),
        says=_EXITED + r" 1(.*\n)*?.*broken on purpose",
        code=1,
    ),
    Fault(
        "exit",
        "`sys.exit(0)` too early",
        Phase.BETWEEN,
        Act.LEAVE,
        errors=("AbortedError",),
        # mpirun tells no exit code of a rank that ends with 0.
        says=rf"({_EXITED} 0|{_LEFT}).*, while other ranks still needed it",
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
)
