"""init … shutdown, and the questions about the job in between."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
from typing import Any

import torch  # noqa: F401  (the extension needs torch's libraries to be loaded)

from .. import _C
from .subset import check_comm, members_of

__all__ = [
    "ccl_built",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rank",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
]

_lock = threading.Lock()
# How often each group of launched ranks has tried to start a job; None: all of them.
_generations: dict[tuple[int, ...] | None, int] = {}
# The launched ranks that form the job, when it is not all of them.
_members: tuple[int, ...] | None = None
# What _C.topology() says, kept because training loops ask often. None outside init … shutdown.
_topology: _C.Topology | None = None


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
            allowed.
        TypeError: `comm` or `process_sets` is something else.
        MismatchError: the ranks are configured differently.
        VersionMismatchError: the ranks run different builds of mydist.
        MydistError: a peer or backend is not there; the text says which and why.
    """
    from .process_set import add_at_start, check_added, check_process_sets

    sets = check_process_sets(process_sets)
    wanted = check_comm(comm)
    with _lock:
        if _C.is_initialized():
            _check_same_job(wanted)
            check_added(sets)
            return
        _connect(wanted)
        try:
            add_at_start(sets)
        except BaseException:
            shutdown()
            raise
        atexit.unregister(_leave_at_exit)
        atexit.register(_leave_at_exit)


def _connect(comm: Any) -> None:
    global _members
    from mydist.launcher.check_build import nccl_folders

    from . import bootstrap, names

    launched = bootstrap.launched_as()
    _members = members_of(comm, *launched) if launched is not None else None
    # Every attempt counts, so that ranks that failed in different ways meet in the next one.
    generation = _generations[_members] = _generations.get(_members, 0) + 1
    context = bootstrap.detect(generation, members=_members)
    try:
        _require_backend(context)
        members = list(_members or ())
        _C.init(
            context.rank, context.size, context.backend, context.exchange, members, nccl_folders()
        )
    finally:
        context.close()
    if launched is None:
        _check_covers_all(comm)
    names.restart_names()


def _check_covers_all(comm: Any) -> None:
    """Where MPI alone knows the ranks, it is too late for a job of some of them."""
    try:
        if members_of(comm, _C.topology().rank, _C.topology().size) is None:
            return
        raise ValueError(
            f"init: comm is {comm!r}, but a job of some of the ranks can be started by mydistrun, "
            "mpirun and torchrun only"
        )
    except ValueError:
        _C.shutdown()
        raise


def _check_same_job(comm: Any) -> None:
    from . import bootstrap

    launched = bootstrap.launched_as() or (_C.topology().rank, _C.topology().size)
    if comm is None or members_of(comm, *launched) == _members:
        return
    job = "all launched ranks" if _members is None else f"ranks {list(_members)}"
    raise ValueError(
        f"init: comm is {comm!r}, but mydist is initialized already, as a job of {job}; call "
        "mydist.shutdown() first"
    )


def _require_backend(context: Any) -> None:
    """Raises MydistError with the reasons when the backend is not there.

    What "auto" comes to, and what "local" lacks, is known when the ranks have met.
    """
    if context.backend in ("auto", "local") or _is(context.backend, "available"):
        return
    why_not = {name: _report(name)["reason"] for name in ("local", "mpi", "gloo")}
    reasons = "; ".join(f"{name}: {reason}" for name, reason in why_not.items() if reason)
    raise _C.MydistError(
        f"a job of {context.size or 'several'} ranks started this way needs the {context.backend} "
        f"backend, which is not available ({reasons}). `mydistrun --check-build` shows what is"
    )


def shutdown() -> None:
    """Leaves the job. Waits, at most MYDIST_SHUTDOWN_SECONDS (5), until all ranks have left too.

    What is still pending fails with AbortedError. Does nothing when not initialized. init() may be
    called again, on all ranks.
    """
    global _topology
    _topology = None
    _forget_process_sets()
    _C.shutdown()


def _forget_process_sets() -> None:
    from . import set_table

    set_table.forget_all()


def _leave_at_exit() -> None:
    # The job is over either way, and a traceback here would hide the program's own exit code.
    with contextlib.suppress(Exception):
        shutdown()


def _forget_in_child() -> None:
    """A forked child is no rank: the engine and its connections stay the parent's."""
    global _topology, _lock
    _topology = None
    _forget_process_sets()
    _lock = threading.Lock()
    atexit.unregister(_leave_at_exit)


os.register_at_fork(after_in_child=_forget_in_child)


def is_initialized() -> bool:
    """Whether this process is in a job, between init() and shutdown()."""
    return _C.is_initialized()


def _job() -> _C.Topology:
    global _topology
    if _topology is None:
        _topology = _C.topology()
    return _topology


def rank() -> int:
    """The number of this process in the job, 0 to size() - 1. ValueError before init()."""
    return _job().rank


def size() -> int:
    """How many ranks the job has. ValueError before init()."""
    return _job().size


def local_rank() -> int:
    """The number of this process among the ranks of its host. ValueError before init()."""
    return _job().local_rank


def local_size() -> int:
    """How many ranks run on this host. ValueError before init()."""
    return _job().local_size


def cross_rank() -> int:
    """The number of this host among those that have our local_rank(). ValueError before init()."""
    return _job().cross_rank


def cross_size() -> int:
    """How many hosts have a rank of our local_rank(). ValueError before init()."""
    return _job().cross_size


def is_homogeneous() -> bool:
    """Whether all hosts have the same number of ranks. ValueError before init()."""
    return _job().is_homogeneous


def start_timeline(file_path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
    """Starts recording what the engines of all ranks do into one Chrome-trace file.

    Args:
        file_path: written by rank 0; the calls of other ranks have no effect. Opens in Perfetto.
        mark_cycles: also record each time the engine wakes up.

    On rank 0 the call returns when all collectives submitted from now on will be recorded. A second
    start begins a new file. A path that cannot be written is one warning; training goes on.

    Raises:
        ValueError: before init(), or `file_path` is empty.
        TypeError: `file_path` is no path.
    """
    if not isinstance(file_path, (str, os.PathLike)):
        raise TypeError(
            f"start_timeline: file_path is {file_path!r} ({type(file_path).__qualname__}), "
            "expected a str or path"
        )
    if not os.fspath(file_path):
        raise ValueError("start_timeline: file_path is empty, expected the path of a file")
    _C.start_timeline(os.path.abspath(file_path), bool(mark_cycles))


def stop_timeline() -> None:
    """Ends the recording; what rank 0 decides counts. ValueError before init().

    On rank 0 the call returns when this rank's events are in the file. Those of the other ranks
    follow within moments, at the latest when shutdown() returns; the file is valid JSON throughout.
    """
    _C.stop_timeline()


def stats() -> dict[str, int]:
    """What this rank's engine has counted since init().

    Keys: control_messages_sent, control_messages_received, control_bytes_sent, cache_hits,
    cache_misses, frozen_steps (whole steps without negotiation, see MYDIST_FREEZE_AFTER), thaws
    (returns to negotiation), host_votes_sent and host_votes_received (of the control messages those
    between hosts in steps without negotiation: one word per bucket, to and from each other host, on
    the lowest rank of a host; 0 elsewhere and in a job of one host), wakeups (of the engine's
    thread), hand_overs (waiting callers that left the engine to another thread), batches, tensors,
    tensor_bytes; inter_host_messages_sent and inter_host_bytes_sent: what collectives made
    this rank send to ranks on other hosts; pack_bytes: what allreduces copied to fuse tensors that
    do not lie one after the other, or to cast them; most_staged_chunks: how many chunks of a tensor
    on a GPU were on their way to the host at once, before they were exchanged, at most.
    ValueError before init().
    """
    return _C.stats()


@functools.cache
def _report(backend: str) -> dict[str, str | bool]:
    return _C.backend_report(backend)


def _is(backend: str, property_name: str) -> bool:
    return bool(_report(backend)[property_name])


def mpi_built() -> bool:
    """Whether this build contains the MPI backend."""
    return _is("mpi", "built")


def mpi_enabled() -> bool:
    """Whether the MPI backend was built and its libraries can be loaded here."""
    return _is("mpi", "available")


def mpi_threads_supported() -> bool:
    """Whether the job runs over MPI, which mydist uses with MPI_THREAD_MULTIPLE only.

    Raises ValueError before init().
    """
    return _C.backend_name() == "mpi"


def gloo_built() -> bool:
    """Whether this build contains the Gloo backend."""
    return _is("gloo", "built")


def gloo_enabled() -> bool:
    """Whether the Gloo backend was built and its libraries can be loaded here."""
    return _is("gloo", "available")


@functools.cache
def nccl_built() -> int:
    """The version of the NCCL that is found here, such as 23203 for 2.32.3; 0: none.

    Looked for at the first call, in this process, in the nvidia-nccl package and in the system's
    places, or where MYDIST_NCCL_LIBRARY says. No GPU is asked for.
    """
    from mydist.launcher.check_build import nccl_folders

    return _C.nccl_version(nccl_folders())


def cuda_built() -> bool:
    """Whether this build contains CUDA code; no GPU is asked for."""
    return _C.cuda_built()


def rocm_built() -> bool:
    """Whether this build contains code for AMD's GPUs; False, as in every version of mydist."""
    return False


def ccl_built() -> bool:
    """Whether this build uses Intel's oneCCL; False, as in every version of mydist."""
    return False


def ddl_built() -> bool:
    """Whether this build uses IBM's DDL; False, as in every version of mydist."""
    return False
