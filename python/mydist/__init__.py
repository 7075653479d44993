"""mydist: data-parallel training for PyTorch.

    import mydist as md

    md.init()
    optimizer = md.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

Names are loaded when they are first used: `import mydist` alone, and mydist.launcher, load neither
torch nor the compiled extension.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ._moved_modules import MOVED, MovedModules

if TYPE_CHECKING:
    from ._explain import explain
    from ._lifecycle import (
        ccl_built,
        cross_rank,
        cross_size,
        cuda_built,
        ddl_built,
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
        rocm_built,
        shutdown,
        size,
        start_timeline,
        stats,
        stop_timeline,
    )
    from ._run import run
    from ._sparse import sparse_allreduce_async
    from .checkpoint import Checkpoint
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
        gather,
        gather_async,
        grouped_allgather,
        grouped_allgather_async,
        grouped_allreduce,
        grouped_allreduce_,
        grouped_allreduce_async,
        grouped_allreduce_async_,
        grouped_reducescatter,
        grouped_reducescatter_async,
        join,
        poll,
        recv,
        recv_async,
        reduce,
        reduce_async,
        reducescatter,
        reducescatter_async,
        scatter,
        scatter_async,
        send,
        send_async,
        synchronize,
    )
    from .compression import Compression, Compressor
    from .consistency import check_consistency
    from .errors import (
        AbortedError,
        CollectiveTimeoutError,
        HorovodInternalError,
        MismatchError,
        MydistError,
        PeerLostError,
        VersionMismatchError,
    )
    from .learning_rate import WarmupLR, scale_lr
    from .loader import prepare_loader
    from .main_rank import main_rank_first
    from .metrics import Metrics
    from .objects import allgather_object, broadcast_object
    from .optimizer import DistributedOptimizer
    from .process_set import (
        ProcessSet,
        add_process_set,
        global_process_set,
        remove_process_set,
    )
    from .progress_bar import progress
    from .rank_logger import get_logger
    from .reduce_op import Adasum, Average, Max, Min, Product, ReduceOp, Sum
    from .sampler import DistributedSampler
    from .seed import seed_everything
    from .state import broadcast_optimizer_state, broadcast_parameters
    from .sync_batch_norm import SyncBatchNorm, convert_sync_batchnorm

    __version__: str

__all__ = [
    "AbortedError",
    "Adasum",
    "Average",
    "Checkpoint",
    "CollectiveTimeoutError",
    "Compression",
    "Compressor",
    "DistributedOptimizer",
    "DistributedSampler",
    "HorovodInternalError",
    "Max",
    "Metrics",
    "Min",
    "MismatchError",
    "MydistError",
    "PeerLostError",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "SyncBatchNorm",
    "VersionMismatchError",
    "WarmupLR",
    "__version__",
    "add_process_set",
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
    "ccl_built",
    "check_consistency",
    "convert_sync_batchnorm",
    "cross_rank",
    "cross_size",
    "cuda_built",
    "ddl_built",
    "explain",
    "gather",
    "gather_async",
    "get_logger",
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
    "join",
    "local_rank",
    "local_size",
    "main_rank_first",
    "mpi_built",
    "mpi_enabled",
    "mpi_threads_supported",
    "nccl_built",
    "poll",
    "prepare_loader",
    "progress",
    "rank",
    "recv",
    "recv_async",
    "reduce",
    "reduce_async",
    "reducescatter",
    "reducescatter_async",
    "remove_process_set",
    "rocm_built",
    "run",
    "scale_lr",
    "scatter",
    "scatter_async",
    "seed_everything",
    "send",
    "send_async",
    "shutdown",
    "size",
    "sparse_allreduce_async",
    "start_timeline",
    "stats",
    "stop_timeline",
    "synchronize",
]

# The module of each public name; everything that is not here is in collectives or _lifecycle.
_ELSEWHERE = {
    "checkpoint": ("Checkpoint",),
    "compression": ("Compression", "Compressor"),
    "consistency": ("check_consistency",),
    "errors": (
        "AbortedError",
        "CollectiveTimeoutError",
        "HorovodInternalError",
        "MismatchError",
        "MydistError",
        "PeerLostError",
        "VersionMismatchError",
    ),
    "learning_rate": ("WarmupLR", "scale_lr"),
    "loader": ("prepare_loader",),
    "main_rank": ("main_rank_first",),
    "metrics": ("Metrics",),
    "objects": ("allgather_object", "broadcast_object"),
    "optimizer": ("DistributedOptimizer",),
    "process_set": (
        "ProcessSet",
        "add_process_set",
        "global_process_set",
        "remove_process_set",
    ),
    "progress_bar": ("progress",),
    "rank_logger": ("get_logger",),
    "reduce_op": ("Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum"),
    "_explain": ("explain",),
    "_run": ("run",),
    "_sparse": ("sparse_allreduce_async",),
    "sampler": ("DistributedSampler",),
    "seed": ("seed_everything",),
    "state": ("broadcast_optimizer_state", "broadcast_parameters"),
    "sync_batch_norm": ("SyncBatchNorm", "convert_sync_batchnorm"),
}
_MODULE_OF = {name: module for module, names in _ELSEWHERE.items() for name in names}

sys.meta_path.insert(0, MovedModules(MOVED))


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in __all__:
        value = _load(name)
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
