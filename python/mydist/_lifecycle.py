"""init … shutdown, and the questions about the job in between."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import threading
from collections.abc import Sequence
from typing import Any

import torch  # noqa: F401  (the extension needs torch's libraries to be loaded)

from . import _C

__all__ = [
    "cross_rank",
    "cross_size",
    "cuda_built",
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
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
]

_lock = threading.Lock()
_generation = 0
# What _C.topology() says, kept because training loops ask often. None outside init … shutdown.
_topology: _C.Topology | None = None


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job this process was started for; collective over all of its ranks.

    Understands mydistrun, Open MPI's mpirun, torchrun and plain python (one rank). Calling it again
    changes nothing. Leaving the job at exit is taken care of.

    Args:
        comm: None, a list of all ranks, or an mpi4py communicator of the size of the job.
        process_sets: None or an empty list; process sets are not part of this version.

    Raises:
        ValueError: a rank subset or process sets are asked for, or a MYDIST_* or launcher variable
            is malformed or missing; the text names it, its value and what is allowed.
        TypeError: `comm` is something else.
        MismatchError: the ranks are configured differently.
        VersionMismatchError: the ranks run different builds of mydist.
        MydistError: a peer or backend is not there; the text says which and why.
    """
    _check_process_sets(process_sets)
    wanted = _check_comm(comm)
    with _lock:
        if _C.is_initialized():
            _check_covers(wanted, size())
            return
        _connect(wanted)
        atexit.unregister(_leave_at_exit)
        atexit.register(_leave_at_exit)


def _connect(wanted: list[int] | int | None) -> None:
    global _generation
    from . import _bootstrap, _names

    # Every attempt counts, so that ranks that failed in different ways meet in the next one.
    _generation += 1
    context = _bootstrap.detect(_generation)
    try:
        if context.size > 0:
            _check_covers(wanted, context.size)
        _require_backend(context)
        _C.init(context.rank, context.size, context.backend, context.exchange)
    finally:
        context.close()
    try:
        _check_covers(wanted, _C.topology().size)
    except ValueError:
        _C.shutdown()
        raise
    _names.restart_names()


def _require_backend(context: Any) -> None:
    """Raises MydistError with the reasons when the backend is not there."""
    reports = _reports()
    if reports[context.backend]["available"]:
        return
    reasons = "; ".join(
        f"{name}: {row['reason']}" for name, row in reports.items() if row["reason"]
    )
    raise _C.MydistError(
        f"a job of {context.size or 'several'} ranks started this way needs the {context.backend} "
        f"backend, which is not available ({reasons}). `mydistrun --check-build` shows what is"
    )


def _check_comm(comm: Any) -> list[int] | int | None:
    """The ranks or the size that `comm` stands for."""
    if comm is None:
        return None
    if callable(getattr(comm, "Get_size", None)):
        return int(comm.Get_size())
    if not isinstance(comm, Sequence) or isinstance(comm, (str, bytes)):
        raise TypeError(
            f"init: comm is {comm!r} ({type(comm).__qualname__}), expected None, a list of ranks "
            "or an mpi4py communicator"
        )
    for item in comm:
        if isinstance(item, bool) or not isinstance(item, int):
            raise TypeError(f"init: comm contains {item!r}, expected ranks (ints)")
    return [int(item) for item in comm]


def _check_covers(wanted: list[int] | int | None, job_size: int) -> None:
    if wanted is None or wanted == job_size or wanted == list(range(job_size)):
        return
    if isinstance(wanted, list) and sorted(wanted) == list(range(job_size)):
        raise ValueError(f"init: comm is {wanted}, expected the ranks in ascending order")
    got = f"a communicator of {wanted} ranks" if isinstance(wanted, int) else f"ranks {wanted}"
    raise ValueError(
        f"init: comm is {got}, but the job has ranks 0 to {job_size - 1}. Jobs of some of the "
        "ranks and process sets are not part of this version; call mydist.init() without comm"
    )


def _check_process_sets(process_sets: Any) -> None:
    if process_sets is None or (isinstance(process_sets, (list, tuple)) and not process_sets):
        return
    raise ValueError(
        f"init: process_sets is {process_sets!r}, but process sets other than the global one are "
        "not part of this version; leave the argument out"
    )


def shutdown() -> None:
    """Leaves the job. Waits, at most MYDIST_SHUTDOWN_SECONDS (5), until all ranks have left too.

    What is still pending fails with AbortedError. Does nothing when not initialized. init() may be
    called again, on all ranks.
    """
    global _topology
    _topology = None
    _C.shutdown()


def _leave_at_exit() -> None:
    # The job is over either way, and a traceback here would hide the program's own exit code.
    with contextlib.suppress(Exception):
        shutdown()


def _forget_in_child() -> None:
    """A forked child is no rank: the engine and its connections stay the parent's."""
    global _topology, _lock
    _topology = None
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
    cache_misses, wakeups, batches, tensors, tensor_bytes. ValueError before init().
    """
    return _C.stats()


@functools.cache
def _reports() -> dict[str, dict[str, str | bool]]:
    return {str(report["name"]): report for report in _C.backend_reports()}


def _is(backend: str, property_name: str) -> bool:
    report = _reports().get(backend)
    return report is not None and bool(report[property_name])


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


def nccl_built() -> int:
    """The version of NCCL this build uses; 0: none, as in this version of mydist."""
    return 0


def cuda_built() -> bool:
    """Whether this build contains CUDA code; not in this version of mydist."""
    return False
