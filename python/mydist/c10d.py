"""The backend "mydist" of torch.distributed: its collectives run on mydist's data plane.

    import mydist.c10d
    torch.distributed.init_process_group("mydist")

Importing this module registers the name. It needs no mydist.init(), and works beside it. Every
process group has shared memory and connections of its own.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from . import _c10d
from .job import failure_report, quit_signal

__all__ = ["register", "stats"]


def register() -> None:
    """Makes the backend "mydist" known to torch.distributed. A second call does nothing."""
    if "MYDIST" not in dist.Backend._plugins:
        dist.Backend.register_backend("mydist", _create, extended_api=True, devices=["cpu"])


def stats() -> dict[str, dict[str, int]]:
    """What this rank has done in each process group that it has now, by the name of the group.

    Keys: operations (collectives that have ended), bytes (of this rank's tensors in them),
    messages_sent and messages_received (send and recv), message_bytes (of both). The sums over all
    groups of this process, also destroyed ones, are in mydist.stats().
    """
    return _c10d.stats()


def _create(options: Any, _: Any) -> Any:
    # Empty: all ranks of the program.
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    failure_report.install()
    failure_report.add_source(_failure_of)
    quit_signal.install()
    world_size = dist.get_world_size() if dist.is_initialized() else options.group_size
    return _c10d.open_group(
        options.store, options.group_rank, ranks, world_size, options.timeout, options.group_id
    )


def _failure_of(error: BaseException) -> dict[str, Any]:
    """What is known of an error that a process group has raised, for mydistrun."""
    failure = _c10d.last_failure() if isinstance(error, dist.DistBackendError) else {}
    return failure if failure.get("message", "") in str(error) else {}


register()
