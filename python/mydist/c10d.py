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

__all__ = ["register"]


def register() -> None:
    """Makes the backend "mydist" known to torch.distributed. A second call does nothing."""
    if "MYDIST" not in dist.Backend._plugins:
        dist.Backend.register_backend("mydist", _create, extended_api=True, devices=["cpu"])


def _create(options: Any, _: Any) -> Any:
    return _c10d.open_group(
        options.store, options.group_rank, options.group_size, options.timeout, options.group_id
    )


register()
