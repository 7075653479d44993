"""Which rank this process is, and how the ranks lie on hosts.

init() and shutdown() stand above this module, and so does all else that asks for a rank.
"""

from __future__ import annotations

from collections.abc import Callable

import torch  # noqa: F401  (the extension needs torch's libraries to be loaded)

from .. import _C

__all__ = [
    "cross_rank",
    "cross_size",
    "is_homogeneous",
    "is_initialized",
    "local_rank",
    "local_size",
    "rank",
    "size",
]

# What _C.topology() says, kept because training loops ask often. None outside init … shutdown.
_topology: _C.Topology | None = None


_actions: list[Callable[[], None]] = []


def when_job_ends(action: Callable[[], None]) -> None:
    """Has `action` called whenever this process leaves a job, also as a forked child."""
    _actions.append(action)


def end_job() -> None:
    """Forgets the job here, and in all that asked with when_job_ends()."""
    global _topology
    _topology = None
    for action in _actions:
        action()


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
