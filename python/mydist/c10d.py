"""The backend "mydist" of torch.distributed: its collectives run on mydist's data plane.

    torch.distributed.init_process_group("mydist")

torch finds an installed mydist by this name. Importing this module registers the name where torch
does not look for it. It needs no mydist.init(), and works beside it. Every process group has shared
memory and connections of its own.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch.distributed as dist
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from .job import torch_store

__all__ = ["create", "register", "stats"]


def register() -> None:
    """Makes the backend "mydist" known to torch.distributed. A second call does nothing."""
    if "MYDIST" not in dist.Backend._plugins:
        dist.Backend.register_backend("mydist", create, extended_api=True, devices=["cpu", "cuda"])
    torch_store.register()


def stats() -> dict[str, dict[str, int]]:
    """What this rank has done in each process group that it has now, by the name of the group.

    Keys: operations (collectives that have ended), bytes (of this rank's tensors in them),
    messages_sent and messages_received (send and recv), message_bytes (of both). The sums over all
    groups of this process, also destroyed ones, are in mydist.stats().
    """
    from . import _C

    return _C.group_stats()


def create(options: Any, _: Any = None) -> Any:
    """Connects the members of a process group; torch.distributed calls it on each of them.

    Raises DistBackendError when the compiled module is missing or does not fit this torch, when the
    group is for GPUs only, and when a member does not come within `options.timeout`.
    """
    if _is_for_gpus(options.store):
        raise dist.DistBackendError(
            'mydist: the backend "mydist" has no support for tensors on GPUs yet, and was asked to '
            'serve cuda. Write init_process_group("cpu:mydist,cuda:nccl")'
        )
    compiled = _compiled()
    from .job import failure_report, quit_signal  # These load the compiled part of mydist.
    from .job.bootstrap import rank_ends_descriptor

    failure_report.install()
    failure_report.add_source(_failure_of)
    quit_signal.install()
    # Empty: all ranks of the program.
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    world_size = dist.get_world_size() if dist.is_initialized() else options.group_size
    return compiled.open_group(
        options.store,
        options.group_rank,
        ranks,
        world_size,
        torch_store.started_by_mpi(),
        rank_ends_descriptor(),
        options.timeout,
        options.group_id,
    )


def _compiled() -> ModuleType:
    try:
        import mydist._c10d as compiled
    except ModuleNotFoundError as error:
        raise dist.DistBackendError(
            'mydist: the backend "mydist" was not built for this Python: it has no mydist._c10d. '
            "Compile it: `make build` in the source tree of mydist, or `pip install "
            "--no-build-isolation --force-reinstall --no-deps .` there"
        ) from error
    except ImportError as error:
        raise dist.DistBackendError(
            f'mydist: the backend "mydist" cannot be loaded: {error}'
        ) from error
    return compiled


def _is_for_gpus(store: Store) -> bool:
    """torch tells the device of a group only by a prefix of its store. The same instance serves
    "cpu:mydist,cuda:mydist"; its prefix is the first of the two."""
    if not isinstance(store, PrefixStore):
        return False
    store.set("device", "")
    outer = store.underlying_store
    return any(outer.check([f"cuda{slashes}device"]) for slashes in ("/", "//"))


def _failure_of(error: BaseException) -> dict[str, Any]:
    """What is known of an error that a process group has raised, for mydistrun."""
    from . import _C

    failure = _C.last_group_failure() if isinstance(error, dist.DistBackendError) else {}
    return failure if failure.get("message", "") in str(error) else {}


register()
