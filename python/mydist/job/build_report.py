"""What this build of mydist contains, and what of it can be loaded here."""

from __future__ import annotations

import functools

import torch  # noqa: F401  (the extension needs torch's libraries to be loaded)

from .. import _C
from .nccl_folders import nccl_folders

__all__ = [
    "ccl_built",
    "cuda_built",
    "ddl_built",
    "gloo_built",
    "gloo_enabled",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "rocm_built",
]


@functools.cache
def backend_report(backend: str) -> dict[str, str | bool]:
    """What the core says about a backend: built, available, reason and description."""
    return _C.backend_report(backend)


def transport_names() -> list[str]:
    """What MYDIST_CONTROLLER may name besides "auto": ours and those of MYDIST_PLUGINS.

    Raises ValueError when an extension cannot be loaded.
    """
    return [name for name, _ in _C.transports()]


def _is(backend: str, property_name: str) -> bool:
    return bool(backend_report(backend)[property_name])


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
