"""mydist: data-parallel training for PyTorch.

    import mydist as md

    md.init()
    optimizer = md.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

Names are loaded when they are first used: `import mydist` alone, and mydist.launcher, load neither
torch nor the compiled extension.
"""

# ruff: noqa: F403  (stars: type checkers see what each module gives)
from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from ._moved_modules import MOVED, MovedModules
from ._torch_version import CheckedBinding

if TYPE_CHECKING:
    from .codecs.python_codec import *
    from .collectives.compression import *
    from .collectives.handles import *
    from .collectives.moves import *
    from .collectives.objects import *
    from .collectives.point_to_point import *
    from .collectives.reductions import *
    from .collectives.sets import *
    from .collectives.sparse import *
    from .collectives.waits import *
    from .errors import *
    from .job.build_report import *
    from .job.init import *
    from .job.recording import *
    from .job.run import *
    from .job.topology import *
    from .optim.consistency import check_consistency as check_consistency
    from .optim.explain import *
    from .optim.learning_rate import *
    from .optim.onebit_adam import *
    from .optim.optimizer import *
    from .optim.sharded.fully_shard import *
    from .optim.sharded.memory import memory_plan as memory_plan
    from .optim.sharded.optimizer import *
    from .optim.sharded.sharded_state import *
    from .optim.state import *
    from .optim.strategies.admm import *
    from .optim.strategies.asynchronous_gradients import *
    from .optim.strategies.block_momentum import *
    from .optim.strategies.diloco import *
    from .optim.strategies.downpour import *
    from .optim.strategies.elastic_averaging import *
    from .optim.strategies.local_sgd import *
    from .optim.strategies.slow_mo import *
    from .optim.strategies.strategy import *
    from .optim.strategies.synchronous import *
    from .reduce_op import *
    from .training.checkpoint import *
    from .training.loader import *
    from .training.main_rank import *
    from .training.metrics import *
    from .training.progress_bar import *
    from .training.rank_logger import *
    from .training.sampler import *
    from .training.seed import *
    from .training.sync_batch_norm import *

    __version__: str

# Every public name, by the module that gives it.
_NAMES = {
    "errors": "AbortedError CollectiveTimeoutError HorovodInternalError MismatchError MydistError "
    "PeerLostError VersionMismatchError",
    "reduce_op": "Adasum Average Max Min Product ReduceOp Sum",
    "job.build_report": "ccl_built cuda_built ddl_built gloo_built gloo_enabled mpi_built "
    "mpi_enabled mpi_threads_supported nccl_built rocm_built",
    "job.init": "init shutdown",
    "job.recording": "start_timeline stats stop_timeline",
    "job.run": "run",
    "job.topology": "cross_rank cross_size is_homogeneous is_initialized local_rank local_size "
    "rank size",
    "codecs.python_codec": "PythonCodec",
    "collectives.compression": "Compression Compressor",
    "collectives.handles": "poll synchronize",
    "collectives.moves": "allgather allgather_async alltoall alltoall_async broadcast broadcast_ "
    "broadcast_async broadcast_async_ gather gather_async grouped_allgather "
    "grouped_allgather_async scatter scatter_async",
    "collectives.objects": "allgather_object broadcast_object",
    "collectives.point_to_point": "recv recv_async send send_async",
    "collectives.reductions": "allreduce allreduce_ allreduce_async allreduce_async_ "
    "grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ "
    "grouped_reducescatter grouped_reducescatter_async reduce reduce_async reducescatter "
    "reducescatter_async",
    "collectives.sets": "ProcessSet add_process_set global_process_set remove_process_set",
    "collectives.sparse": "sparse_allreduce_async",
    "collectives.waits": "barrier join",
    "optim.consistency": "check_consistency",
    "optim.explain": "explain",
    "optim.learning_rate": "WarmupLR scale_lr",
    "optim.onebit_adam": "OneBitAdam",
    "optim.optimizer": "DistributedOptimizer",
    "optim.sharded.fully_shard": "fully_shard",
    "optim.sharded.memory": "memory_plan",
    "optim.sharded.optimizer": "ShardedOptimizer",
    "optim.sharded.sharded_state": "gather_state prepare_state scatter_state",
    "optim.state": "broadcast_optimizer_state broadcast_parameters",
    "optim.strategies.admm": "admm",
    "optim.strategies.asynchronous_gradients": "AsynchronousGradients",
    "optim.strategies.block_momentum": "BlockMomentum",
    "optim.strategies.diloco": "DiLoCo",
    "optim.strategies.downpour": "Downpour",
    "optim.strategies.elastic_averaging": "ElasticAveraging",
    "optim.strategies.local_sgd": "LocalSGD PostLocalSGD",
    "optim.strategies.slow_mo": "SlowMo",
    "optim.strategies.strategy": "Strategy",
    "optim.strategies.synchronous": "SynchronousGradients",
    "training.checkpoint": "Checkpoint",
    "training.loader": "prepare_loader",
    "training.main_rank": "main_rank_first",
    "training.metrics": "Metrics",
    "training.progress_bar": "progress",
    "training.rank_logger": "get_logger",
    "training.sampler": "DistributedSampler",
    "training.seed": "seed_everything",
    "training.sync_batch_norm": "SyncBatchNorm convert_sync_batchnorm",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(["__version__", *_MODULE_OF])

sys.meta_path[:0] = [
    MovedModules(MOVED),
    *(CheckedBinding(f"{__name__}.{module}") for module in ("_C", "_c10d", "_ps")),
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        value: Any = _version()
    elif name in __all__:
        value = _load(name)
    elif name in ("elastic", "ps"):
        importlib.import_module("torch")
        value = importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module 'mydist' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _load(name: str) -> Any:
    importlib.import_module("torch")  # The extension finds torch's libraries by their being loaded.
    module = importlib.import_module(f"{__name__}.{_MODULE_OF[name]}")
    return getattr(module, name)


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mydist")
    except PackageNotFoundError:  # used from a build folder, without being installed
        compiled = importlib.import_module(f"{__name__}._C")
        return str(compiled.version())
