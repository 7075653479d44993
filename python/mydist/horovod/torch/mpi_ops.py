"""`horovod.torch.mpi_ops`: the collectives, and what a process knows of its job."""

# ruff: noqa: F403  (the two modules list their public names)
from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

from ...job import build_report, recording, topology
from ...job import init as own_job
from ...job.build_report import (
    ccl_built,
    cuda_built,
    ddl_built,
    gloo_built,
    gloo_enabled,
    mpi_built,
    mpi_enabled,
    nccl_built,
    rocm_built,
)
from ..common.exceptions import HorovodInternalError
from ..common.process_sets import (
    NO_JOB,
    ProcessSet,
    add_process_set,
    begin,
    end,
    given_sets,
    global_process_set,
    remove_process_set,
)
from ..common.util import (
    check_installed_version,
    get_average_backwards_compatibility_fun,
    gpu_available,
    is_iterable,
    num_rank_is_power_2,
)
from ..environment import adopt_settings
from . import asynchronous, synchronous
from .asynchronous import *
from .asynchronous import forget_handles
from .compression import Compression
from .synchronous import *

__all__ = [
    "Compression",
    "HorovodInternalError",
    "ProcessSet",
    "add_process_set",
    "ccl_built",
    "check_installed_version",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "get_average_backwards_compatibility_fun",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "gpu_available",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "num_rank_is_power_2",
    "rank",
    "remove_process_set",
    "rocm_built",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
__all__ += asynchronous.__all__
__all__ += synchronous.__all__

_Value = TypeVar("_Value")


def init(comm: Any = None, process_sets: Any = None) -> None:
    """Joins the job. A second call changes nothing. See mydist.init.

    Args:
        comm: the ranks that form the job, or an mpi4py communicator; None or [] for all.
        process_sets: a list of ProcessSet to begin with. "dynamic", or the variable
            HOROVOD_DYNAMIC_PROCESS_SETS=1, allows to add and remove sets later.

    Raises ValueError for a set that is given twice, and for what is no `comm`; others as
    mydist.init.
    """
    if topology.is_initialized() and global_process_set.ranks:
        return
    is_list = comm is None or is_iterable(comm)
    if not is_list and not callable(getattr(comm, "Get_size", None)):
        raise ValueError(
            "Invalid type of argument comm. Expected list of rank integers or mpi4py.MPI.Comm "
            "object."
        )
    sets = given_sets(process_sets)
    adopt_settings()
    forget_handles()
    own_job.init((list(comm or ()) or None) if is_list else comm)
    try:
        begin(sets, None if is_list else comm)
    except BaseException:
        shutdown()
        raise


def shutdown() -> None:
    """Leaves the job."""
    own_job.shutdown()
    end()


def is_initialized() -> bool:
    """Whether init() has been called, and shutdown() has not."""
    return topology.is_initialized()


def _of_job(number: Callable[[], _Value]) -> _Value:
    try:
        return number()
    except ValueError:
        raise ValueError(NO_JOB) from None


def size() -> int:
    """How many ranks the job has. ValueError before init(), as of the five below."""
    return _of_job(topology.size)


def rank() -> int:
    """This process's number in the job, from 0."""
    return _of_job(topology.rank)


def local_size() -> int:
    """How many ranks this host has."""
    return _of_job(topology.local_size)


def local_rank() -> int:
    """This process's number on its host, from 0."""
    return _of_job(topology.local_rank)


def cross_size() -> int:
    """How many hosts have a rank with this local_rank()."""
    return _of_job(topology.cross_size)


def cross_rank() -> int:
    """The number of this host among those."""
    return _of_job(topology.cross_rank)


def is_homogeneous() -> bool:
    """Whether every host has as many ranks."""
    return _of_job(topology.is_homogeneous)


def mpi_threads_supported() -> bool:
    """Whether MPI may be called from several threads.

    Raises ValueError where MPI cannot be used, and before init().
    """
    if not mpi_enabled():
        raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")
    rank()
    return build_report.mpi_threads_supported()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begins a timeline in this file. ValueError before init(). See mydist.start_timeline."""
    rank()
    recording.start_timeline(os.fspath(file_path), mark_cycles=mark_cycles)


def stop_timeline() -> None:
    """Ends the timeline. ValueError before init()."""
    rank()
    recording.stop_timeline()
