"""mydist: data-parallel training for PyTorch.

    import mydist as md

    md.init()
    optimizer = md.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

Names are loaded when they are first used: `import mydist` alone, and mydist.launcher, load neither
torch nor the compiled extension.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._lifecycle import (
        cross_rank,
        cross_size,
        cuda_built,
        gloo_built,
        gloo_enabled,
        init,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_size,
        mpi_built,
        mpi_enabled,
        mpi_threads_supported,
        nccl_built,
        rank,
        shutdown,
        size,
        start_timeline,
        stats,
        stop_timeline,
    )
    from ._run import run
    from .collectives import (
        allgather,
        allgather_async,
        allreduce,
        allreduce_,
        allreduce_async,
        allreduce_async_,
        alltoall,
        alltoall_async,
        barrier,
        broadcast,
        broadcast_,
        broadcast_async,
        broadcast_async_,
        grouped_allgather,
        grouped_allgather_async,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        grouped_reducescatter,
        grouped_reducescatter_async,
        poll,
        reducescatter,
        reducescatter_async,
        synchronize,
    )
    from .compression import Compression, Compressor
    from .errors import (
        AbortedError,
        CollectiveTimeoutError,
        HorovodInternalError,
        MismatchError,
        MydistError,
        PeerLostError,
        VersionMismatchError,
    )
    from .objects import allgather_object, broadcast_object
    from .optimizer import DistributedOptimizer
    from .process_set import ProcessSet, global_process_set
    from .reduce_op import Average, Max, Min, Product, ReduceOp, Sum
    from .state import broadcast_optimizer_state, broadcast_parameters

    __version__: str

__all__ = [
    "AbortedError",
    "Average",
    "CollectiveTimeoutError",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "HorovodInternalError",
    "Max",
    "Min",
    "MismatchError",
    "MydistError",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "VersionMismatchError",
    "__version__",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "barrier",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "global_process_set",
    "gloo_built",
    "gloo_enabled",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "init",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "rank",
    "reducescatter",
    "reducescatter_async",
    "run",
    "shutdown",
    "size",
    "start_timeline",
    "stats",
    "stop_timeline",
    "synchronize",
]

# The module of each public name; everything that is not here is in collectives or _lifecycle.
_ELSEWHERE = {
    "compression": ("Compression", "Compressor"),
    "errors": (
        "AbortedError",
        "CollectiveTimeoutError",
        "HorovodInternalError",
        "MismatchError",
        "MydistError",
        "PeerLostError",
        "VersionMismatchError",
    ),
    "objects": ("allgather_object", "broadcast_object"),
    "optimizer": ("DistributedOptimizer",),
    "process_set": ("ProcessSet", "global_process_set"),
    "reduce_op": ("Average", "Max", "Min", "Product", "ReduceOp", "Sum"),
    "_run": ("run",),
    "state": ("broadcast_optimizer_state", "broadcast_parameters"),
}
_MODULE_OF = {name: module for module, names in _ELSEWHERE.items() for name in names}

# Names that scripts written for horovod.torch may use and that this version does not have yet.
_PLANNED = {
    "Adasum",
    "SyncBatchNorm",
    "add_process_set",
    "join",
    "remove_process_set",
    "sparse_allreduce_async",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in __all__:
        value = _load(name)
    elif name in _PLANNED:
        raise AttributeError(f"mydist.{name} is planned, but not part of this version of mydist")
    else:
        raise AttributeError(f"module 'mydist' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _load(name: str) -> Any:
    importlib.import_module("torch")  # The extension finds torch's libraries by their being loaded.
    if name in _MODULE_OF:
        return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    collectives = importlib.import_module(f"{__name__}.collectives")
    module = collectives if name in collectives.__all__ else _lifecycle_module()
    return getattr(module, name)


def _lifecycle_module() -> Any:
    return importlib.import_module(f"{__name__}._lifecycle")


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mydist")
    except PackageNotFoundError:  # used from a build folder, without being installed
        compiled = importlib.import_module(f"{__name__}._C")
        return str(compiled.version())
