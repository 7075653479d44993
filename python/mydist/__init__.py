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
    from .collectives.compression import Compression, Compressor
    from .collectives.objects import allgather_object, broadcast_object
    from .collectives.sets import add_process_set, remove_process_set
    from .collectives.sparse import sparse_allreduce_async
    from .errors import (
        AbortedError,
        CollectiveTimeoutError,
        HorovodInternalError,
        MismatchError,
        MydistError,
        PeerLostError,
        VersionMismatchError,
    )
    from .job.build_report import (
        ccl_built,
        cuda_built,
        ddl_built,
        gloo_built,
        gloo_enabled,
        mpi_built,
        mpi_enabled,
        mpi_threads_supported,
        nccl_built,
        rocm_built,
    )
    from .job.init import init, shutdown
    from .job.process_set import ProcessSet, global_process_set
    from .job.recording import start_timeline, stats, stop_timeline
    from .job.run import run
    from .job.topology import (
        cross_rank,
        cross_size,
        is_homogeneous,
        is_initialized,
        local_rank,
        local_size,
        rank,
        size,
    )
    from .optim.consistency import check_consistency
    from .optim.explain import explain
    from .optim.learning_rate import WarmupLR, scale_lr
    from .optim.optimizer import DistributedOptimizer
    from .optim.state import broadcast_optimizer_state, broadcast_parameters
    from .reduce_op import Adasum, Average, Max, Min, Product, ReduceOp, Sum
    from .training.checkpoint import Checkpoint
    from .training.loader import prepare_loader
    from .training.main_rank import main_rank_first
    from .training.metrics import Metrics
    from .training.progress_bar import progress
    from .training.rank_logger import get_logger
    from .training.sampler import DistributedSampler
    from .training.seed import seed_everything
    from .training.sync_batch_norm import SyncBatchNorm, convert_sync_batchnorm

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

# The module of each public name; everything that is not here is in collectives.
_ELSEWHERE = {
    "training.checkpoint": ("Checkpoint",),
    "collectives.compression": ("Compression", "Compressor"),
    "optim.consistency": ("check_consistency",),
    "errors": (
        "AbortedError",
        "CollectiveTimeoutError",
        "HorovodInternalError",
        "MismatchError",
        "MydistError",
        "PeerLostError",
        "VersionMismatchError",
    ),
    "optim.learning_rate": ("WarmupLR", "scale_lr"),
    "training.loader": ("prepare_loader",),
    "training.main_rank": ("main_rank_first",),
    "training.metrics": ("Metrics",),
    "collectives.objects": ("allgather_object", "broadcast_object"),
    "optim.optimizer": ("DistributedOptimizer",),
    "job.build_report": (
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
    ),
    "job.init": ("init", "shutdown"),
    "job.process_set": ("ProcessSet", "global_process_set"),
    "training.progress_bar": ("progress",),
    "training.rank_logger": ("get_logger",),
    "reduce_op": ("Adasum", "Average", "Max", "Min", "Product", "ReduceOp", "Sum"),
    "optim.explain": ("explain",),
    "job.recording": ("start_timeline", "stats", "stop_timeline"),
    "job.run": ("run",),
    "job.topology": (
        "cross_rank",
        "cross_size",
        "is_homogeneous",
        "is_initialized",
        "local_rank",
        "local_size",
        "rank",
        "size",
    ),
    "collectives.sets": ("add_process_set", "remove_process_set"),
    "collectives.sparse": ("sparse_allreduce_async",),
    "training.sampler": ("DistributedSampler",),
    "training.seed": ("seed_everything",),
    "optim.state": ("broadcast_optimizer_state", "broadcast_parameters"),
    "training.sync_batch_norm": ("SyncBatchNorm", "convert_sync_batchnorm"),
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
    module = importlib.import_module(f"{__name__}.{_MODULE_OF.get(name, 'collectives')}")
    return getattr(module, name)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mydist")
    except PackageNotFoundError:  # used from a build folder, without being installed
        compiled = importlib.import_module(f"{__name__}._C")
        return str(compiled.version())
