"""The jobs of checks: which suite runs on how many ranks over which backend, and how often.

Ordinary runs have each check in one job at least, each data path in one job with all cases, and
each backend and layout with a few cases; some jobs take turns. A deep run has all jobs and cases.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """One job. Over MPI and Gloo without shared memory, unless its suite says otherwise."""

    np: int
    backend: str
    suite: str
    every_case: bool = False
    turn: int = 0
    turns: int = 1

    def has_turn(self, number: int | None) -> bool:
        """Whether the ordinary run of this number has the job; each has it that has none."""
        return number is None or number % self.turns == self.turn

    @property
    def name(self) -> str:
        """How its items are named."""
        return f"{self.backend}-np{self.np}-{self.suite}"


# Each way to fold numbers runs all cases once: in shared memory, and host by host over a network.
ORDINARY = (
    Job(3, "local", "whole", every_case=True),
    Job(3, "local", "frozen", turn=0, turns=3),
    Job(3, "local", "unfused"),
    Job(2, "local", "bucketed"),
    Job(2, "local", "late"),
    Job(2, "local", "steady"),
    Job(2, "gloo", "main", turn=0, turns=2),
    Job(3, "gloo", "frozen_lone", turn=1, turns=3),
    Job(4, "gloo", "hosts", every_case=True, turn=1, turns=2),
    Job(4, "gloo", "frozen_hosts", turn=2, turns=3),
    Job(3, "mpi", "main", turn=1, turns=2),
    Job(3, "mpi", "hosts", turn=0, turns=2),
    Job(2, "mpi", "late_lone"),
    Job(3, "local", "servers", every_case=True),
    Job(2, "gloo", "servers_over_tcp"),
)

_SOME = ("optimizer", "sets", "state", "strategies")
_DEEP = (
    *[(np, "local", "main") for np in (1, 2, 3, 4)],
    *[(np, "gloo", "main") for np in (2, 4)],
    *[(np, "mpi", "main") for np in (1, 2, 3)],
    *[(np, "local", suite) for suite in _SOME for np in (1, 2, 3, 4)],
    *[(3, "gloo", suite) for suite in _SOME],
    *[(4, "mpi", suite) for suite in _SOME],
    (3, "local", "unfused"),
    (3, "mpi", "unfused"),
    (3, "mpi", "shared"),
    (2, "gloo", "shared"),
    (2, "local", "bucketed"),
    *[(np, "local", "frozen") for np in (2, 4)],
    (3, "gloo", "frozen"),
    *[(2, backend, "steady") for backend in ("local", "gloo", "mpi")],
    (4, "gloo", "steady_hosts"),
    (3, "gloo", "frozen_lone"),
    (2, "local", "late"),
    (5, "local", "crowded"),
    (3, "mpi", "crowded"),
    *[(4, backend, "late_hosts") for backend in ("gloo", "mpi")],
    *[(2, backend, "late_lone") for backend in ("gloo", "mpi")],
    (4, "gloo", "hosts"),
    (3, "mpi", "hosts"),
    (4, "gloo", "frozen_hosts"),
    (3, "mpi", "frozen_hosts"),
)
DEEP = tuple(Job(np, backend, suite, every_case=True) for np, backend, suite in _DEEP)
