"""What a rank leaves for its children: whose children they are, and its numbers.

A worker of a DataLoader, or any other process that a rank forks, spawns or starts, inherits the
record and the variables of the launcher. It is no rank. A process that a launcher has started anew
has other variables of a launcher than the record; the record is not about that process.

The environment has the record for every process that a rank starts. A worker of multiprocessing's
forkserver has the environment in which the server started, though, perhaps before init() or in
another job. So multiprocessing also gives each process that it starts a note with the record.
"""

from __future__ import annotations

import contextlib
import functools
import json
import multiprocessing
import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any

# mydistrun takes what begins with MYDIST_JOB_ out of the environment of its ranks.
_VARIABLE = "MYDIST_JOB_PARENT"
# In a note: the process has left its job, whatever an older environment says.
_NO_RANK = ""

# What tells apart the processes that a launcher starts, and its jobs; a row each launcher.
_LAUNCHERS = (
    ("MYDIST_RANK", "MYDIST_SIZE", "MYDIST_RENDEZVOUS", "MYDIST_JOB_ID"),
    (
        "OMPI_COMM_WORLD_RANK",
        "OMPI_COMM_WORLD_SIZE",
        "OMPI_MCA_ess_base_jobid",
        "OMPI_MCA_orte_hnp_uri",
        "PMIX_NAMESPACE",
    ),
    (
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
    ),
)
_OF_TORCH = _LAUNCHERS[-1]
_SIZES = ("MYDIST_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE")
# What else mydistrun gives to a rank, and no rank of another job.
_TAG = "MYDIST_FAILURE_TAG"
_OF_MYDISTRUN = (
    _TAG,
    "MYDIST_JOB_KEY_FD",
    "MYDIST_JOB_ENDS_FD",
    "MYDIST_SERVER_ADDRESSES",
    "MYDIST_HOST_ID",
    "MYDIST_CONTROLLER",
)


@dataclass(frozen=True)
class Numbers:
    """Which rank a process is, and how the ranks lie on hosts."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    is_homogeneous: bool


@dataclass(frozen=True)
class RankRecord:
    """Of one rank: its process, its numbers, and the variables that a launcher gave it."""

    pid: int
    numbers: Numbers
    launch: dict[str, str]

    @property
    def is_one_of_many(self) -> bool:
        """Whether there are other ranks, which a second process of this one would disturb."""
        sizes = [self.launch.get(name, "") for name in _SIZES]
        return self.numbers.size > 1 or any(size.isdecimal() and int(size) > 1 for size in sizes)

    def to_json(self) -> str:
        """As the children read it."""
        return json.dumps({**vars(self), "numbers": vars(self.numbers)})

    def whose_child(self) -> str:
        """Says what this process is, for messages."""
        return (
            f"this process (pid {os.getpid()}) is a child of rank {self.numbers.rank} "
            f"(pid {self.pid})"
        )


def leave_record(
    numbers: Numbers,
    environment: MutableMapping[str, str] = os.environ,
    notes: MutableMapping[str, Any] | None = None,
) -> RankRecord:
    """Tells the children that this process is going to have that it is this rank."""
    record = RankRecord(os.getpid(), numbers, _launch(environment))
    environment[_VARIABLE] = record.to_json()
    _or_own(notes)[_VARIABLE] = environment[_VARIABLE]
    return record


def remove_record(
    environment: MutableMapping[str, str] = os.environ,
    notes: MutableMapping[str, Any] | None = None,
) -> None:
    """This process is a rank no more."""
    environment.pop(_VARIABLE, None)
    _or_own(notes)[_VARIABLE] = _NO_RANK


def parents_record(
    environment: Mapping[str, str] = os.environ, notes: Mapping[str, Any] | None = None
) -> RankRecord | None:
    """The record of the rank whose child this process is; None if it is no child of one."""
    notes = _or_own(notes)
    inherited, told = _read(environment), _read(notes)
    record = inherited or told
    # The variables fit the record that came with them, which may be older than the note.
    if record is None or not _is_of_its_job(record, environment):
        return None
    return told if told is not None or notes.get(_VARIABLE) == _NO_RANK else inherited


def drop_inherited(
    environment: MutableMapping[str, str] = os.environ, notes: Mapping[str, Any] | None = None
) -> None:
    """Removes what a launcher told a rank, in a process of another job that descends from it.

    Without this a rank that torchrun starts below a rank of mydistrun takes itself for the latter.
    Changes nothing in a rank, in its children, and where no rank is among the ancestors.
    """
    record = _read(environment) or _read(_or_own(notes)) or _unrecorded(environment)
    if record is None or _is_of_its_job(record, environment):
        return
    for names in _LAUNCHERS:
        if all(record.launch.get(name) == environment.get(name) for name in names):
            is_ours = names is not _OF_TORCH and not record.launch.keys().isdisjoint(names)
            more = _OF_MYDISTRUN if is_ours else ()
            for name in (*names, *more):
                environment.pop(name, None)


def _unrecorded(environment: Mapping[str, str]) -> RankRecord | None:
    """What a rank of mydistrun would have left that has not called init(), in a process that
    another launcher has started below it; else None.

    mydistrun takes the variables of other launchers from its ranks, so theirs are newer.
    """
    rows: Sequence[Sequence[str]] = ()
    if any(name.startswith("TORCHELASTIC_") for name in environment):
        rows = _LAUNCHERS[:-1]
    elif "MYDIST_RANK" in environment and "OMPI_COMM_WORLD_RANK" in environment:
        rows = (_LAUNCHERS[0], _OF_TORCH)
    if not rows or _TAG not in environment:
        return None
    return RankRecord(0, Numbers(0, 1, 0, 1, 0, 1, True), _launch(environment, rows))


def _or_own(notes: Any) -> Any:
    """The notes; by default those that multiprocessing copies to each process this one starts."""
    if notes is None:
        return getattr(multiprocessing.current_process(), "_config", {})
    return notes


def _is_of_its_job(record: RankRecord, environment: Mapping[str, str]) -> bool:
    """Whether no launcher has started this process anew.

    A script that another launcher started may have set torch.distributed's variables itself.
    """
    launch = _launch(environment)
    if record.launch == launch:
        return True
    own = {"RANK": str(record.numbers.rank), "WORLD_SIZE": str(record.numbers.size)}
    others = _launch(record.launch, _LAUNCHERS[:-1])
    return (
        bool(others)
        and others == _launch(environment, _LAUNCHERS[:-1])
        and all(launch.get(name) == value for name, value in own.items())
        and not any(name.startswith("TORCHELASTIC_") for name in launch)
    )


def _launch(
    environment: Mapping[str, str], rows: Sequence[Sequence[str]] = _LAUNCHERS
) -> dict[str, str]:
    names = (name for row in rows for name in row)
    return {name: environment[name] for name in names if name in environment}


def _read(place: Mapping[str, Any]) -> RankRecord | None:
    """The record of another process, if there is one that can be read."""
    record = _parse(place.get(_VARIABLE, _NO_RANK))
    return record if record is not None and record.pid != os.getpid() else None


@functools.lru_cache(maxsize=4)  # A worker may ask for its rank at every sample.
def _parse(text: str) -> RankRecord | None:
    with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
        known = json.loads(text)
        record = RankRecord(known["pid"], Numbers(**known["numbers"]), known["launch"])
        numbers = (record.pid, *vars(record.numbers).values())
        is_whole = isinstance(record.launch, dict) and all(
            isinstance(value, str) for value in record.launch.values()
        )
        if is_whole and all(isinstance(number, int) for number in numbers):
            return record
    return None
