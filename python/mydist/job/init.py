"""init and shutdown: how this process joins its job and leaves it."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch  # noqa: F401  (the extension needs torch's libraries to be loaded)

from .. import _C
from ..errors import MismatchError, MydistError, VersionMismatchError
from . import failure_report, quit_signal, topology
from .bootstrap import LaunchContext, detect, launched_as, timeout_seconds
from .build_report import backend_report, transport_names
from .error_text import check_whole, wrong_type
from .names import restart_names
from .nccl_folders import nccl_folders
from .process_set import add_to_job, check_added, check_process_sets
from .rank_record import drop_inherited
from .worker import Worker
from .worker import worker as elastic_worker

__all__ = ["init", "shutdown"]

_OF_RANK = (
    "may call init(). rank(), size() and similar calls work here without it. mydistrun, "
    "mydist.run() and torchrun start a new job"
)
_lock = threading.Lock()
# How often each group of launched ranks has tried to start a job; None: all of them.
_generations: dict[tuple[int, ...] | None, int] = {}
# The launched ranks that form the job, when it is not all of them.
_members: tuple[int, ...] | None = None
_leaves_at_exit = False


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job this process was started for; collective over all of its ranks.

    Understands mydistrun, Open MPI's mpirun, torchrun and plain python (one rank). Calling it again
    changes nothing. Leaving the job at exit is taken care of.

    Args:
        comm: None for all ranks that were launched; or the launched ranks that form the job, in
            ascending order, as a list or an mpi4py communicator. Within the job they are numbered
            from 0. The others do not call init(), or give the list of another job.
        process_sets: sets to start with, equal on all ranks and in one order: a list of ProcessSet.
            "dynamic" means none, as None does; sets can be added and removed at any time.

    Raises:
        ValueError: `comm` or a process set does not fit the ranks there are, or a MYDIST_* or
            launcher variable is malformed or missing; the text names it, its value and what is
            allowed. Also in a child of a rank, such as a worker of a DataLoader.
        TypeError: `comm` or `process_sets` is something else.
        MismatchError: the ranks are configured differently.
        VersionMismatchError: the ranks run different builds of mydist.
        CollectiveTimeoutError: a rank has not come, or is stopped; see MYDIST_TIMEOUT_SECONDS.
        MydistError: a peer or backend is not there; the text says which and why.
    """
    topology.refuse_in_child("init", _OF_RANK)
    sets = check_process_sets(process_sets)
    wanted = _check_comm(comm)
    with _lock:
        if _C.is_initialized():
            _check_same_job(wanted)
            check_added(sets)
            return
        if (worker := elastic_worker()) is None:
            _connect(wanted)
        else:
            _check_elastic(wanted, sets)
            _enter_epoch(worker)
        try:
            add_to_job("init", sets, timeout_seconds())
        except BaseException:
            shutdown()
            raise
        _register_leave()


def _check_elastic(comm: Any, sets: Any) -> None:
    """What an elastic job does not have."""
    if comm is not None:
        raise ValueError("init: comm is given, but an elastic job is always one of all its ranks")
    if sets:
        raise ValueError(
            "init: process_sets is given, but process sets end with an epoch of an elastic job. "
            "Call add_process_set() after init() and in a callback of "
            "TorchState.register_reset_callbacks"
        )


def _enter_epoch(worker: Worker) -> None:
    """Joins the next epoch. A rank that is lost while they meet is a reason for another one."""
    while True:
        world = worker.next_world()
        try:
            _connect(None, world.epoch)
            return
        except (MismatchError, VersionMismatchError):
            raise
        except MydistError as error:
            worker.note_loss(error)


def _register_leave() -> None:
    """Once: atexit keeps the place of each function that has been unregistered."""
    global _leaves_at_exit
    if not _leaves_at_exit:
        _leaves_at_exit = True
        atexit.register(_leave_at_exit)


def _connect(comm: Any, epoch: int = 0) -> None:
    """`epoch`: of an elastic job."""
    global _members
    drop_inherited()
    failure_report.install()
    launched = launched_as()
    _members = _members_of(comm, *launched) if launched is not None else None
    failure_report.set_members(_members)
    # Every attempt counts, so that ranks that failed in different ways meet in the next one.
    generation = _generations[_members] = _generations.get(_members, 0) + 1
    context = detect(epoch or generation, members=_members)
    if epoch:  # mydistrun tells ends by the numbers of workers.
        context = replace(context, rank_ends=-1)
    try:
        _require_backend(context)
        members = list(_members or ())
        _C.init(
            context.rank,
            context.size,
            context.backend,
            context.exchange,
            members,
            nccl_folders(),
            context.rank_ends,
        )
    finally:
        context.close()
    quit_signal.install()
    if launched is None:
        _check_covers_all(comm)
    topology.begin_job()
    restart_names()
    failure_report.note_recovery()


def _check_covers_all(comm: Any) -> None:
    """Where MPI alone knows the ranks, it is too late for a job of some of them."""
    try:
        if _members_of(comm, _C.topology().rank, _C.topology().size) is None:
            return
        raise ValueError(
            f"init: comm is {comm!r}, but only mydistrun, mpirun and torchrun can start "
            "a job of some of the ranks"
        )
    except ValueError:
        _C.shutdown()
        raise


def _check_same_job(comm: Any) -> None:
    launched = launched_as() or (_C.topology().rank, _C.topology().size)
    if comm is None or _members_of(comm, *launched) == _members:
        return
    job = "all launched ranks" if _members is None else f"ranks {list(_members)}"
    raise ValueError(
        f"init: comm is {comm!r}, but mydist is already initialized, as a job of {job}; call "
        "mydist.shutdown() first"
    )


def _require_backend(context: LaunchContext) -> None:
    """Raises MydistError with the reasons when the backend is not there.

    What "auto" comes to, and what "local" lacks, is known when the ranks have met.
    """
    if context.backend in ("auto", "local") or backend_report(context.backend)["available"]:
        return
    why_not = {name: backend_report(name)["reason"] for name in transport_names()}
    reasons = "; ".join(f"{name}: {reason}" for name, reason in why_not.items() if reason)
    raise _C.MydistError(
        f"a job of {context.size or 'several'} ranks started this way needs the {context.backend} "
        f"backend, which is not available ({reasons}). `mydistrun --check-build` shows all backends"
    )


def _check_comm(comm: Any) -> list[int] | Any | None:
    """None, a list of ranks, or something used as an mpi4py communicator. Raises TypeError."""
    if comm is None or callable(getattr(comm, "Get_size", None)):
        return comm
    if not isinstance(comm, Sequence) or isinstance(comm, (str, bytes)):
        raise wrong_type("init: comm", comm, "None, a list of ranks or an mpi4py communicator")
    return [check_whole("init: an item of comm", item, "a rank (int)") for item in comm]


def _members_of(comm: list[int] | Any | None, rank: int, size: int) -> tuple[int, ...] | None:
    """The launched ranks that form the job; None for all of them.

    Args:
        comm: what _check_comm() returned.
        rank, size: this process's place among the launched ones.

    Raises:
        ValueError: `comm` does not fit what was launched, or this process is not among its ranks.
    """
    if comm is None:
        return None
    members = _ranks_in(comm, rank, size) if callable(getattr(comm, "Get_size", None)) else comm
    if not members:
        raise ValueError("init: comm is empty, expected the ranks that form the job")
    if not all(0 <= member < size for member in members):
        raise ValueError(f"init: comm is ranks {members}, but the job has ranks 0 to {size - 1}")
    if sorted(set(members)) != list(members):
        raise ValueError(
            f"init: comm is {members}, expected the ranks in ascending order, each of them once"
        )
    if rank not in members:
        raise ValueError(
            f"init: comm is ranks {members}, but this process was launched as rank {rank}; call "
            "init() only on the ranks of the list, or with another list on the others"
        )
    return None if len(members) == size else tuple(members)


def _ranks_in(communicator: Any, rank: int, size: int) -> list[int]:
    """The launched ranks behind an mpi4py communicator. Collective over it."""
    if not communicator:
        raise ValueError("init: comm is COMM_NULL; call init() only on the communicator's ranks")
    count = int(communicator.Get_size())
    if count == size:
        return list(range(size))
    if count > size:
        raise ValueError(
            f"init: comm is a communicator of {count} ranks, but the job has ranks 0 to {size - 1}"
        )
    return sorted(int(member) for member in communicator.allgather(rank))


def shutdown() -> None:
    """Leaves the job. Waits until all ranks have left too.

    A rank that runs may take as long as it likes, to write a model for instance: a line tells of
    it every 10 s, and Ctrl-C ends the wait. MYDIST_SHUTDOWN_SECONDS (5) is the time for ranks that
    give no answer, as they are stopped or dead, and while an exception is under way for any rank.
    What is still pending fails with AbortedError. Does nothing when not initialized. init() may be
    called again, on all ranks.
    """
    topology.end_job()
    # An exception that is under way is to end the program, or to be handled with a new job.
    try:
        _C.shutdown(awaits_living=sys.exc_info()[0] is None)
    finally:
        topology.conclude_job()


def _leave_at_exit() -> None:
    # The job is over either way, and a traceback here would hide the program's own exit code.
    with contextlib.suppress(Exception, KeyboardInterrupt, SystemExit):
        failure_report.tell_at_exit()
        has_failed = failure_report.has_failed()
        topology.end_job(in_failure=has_failed)
        _C.shutdown(awaits_living=not has_failed)
        topology.conclude_job()


def _forget_in_child() -> None:
    """A forked child is no rank: the engine and its connections stay the parent's."""
    global _lock, _leaves_at_exit
    _lock = threading.Lock()
    _leaves_at_exit = False
    atexit.unregister(_leave_at_exit)


os.register_at_fork(after_in_child=_forget_in_child)
