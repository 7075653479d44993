"""Which rank this process is, and how the ranks lie on hosts.

init() and shutdown() stand above this module, and so does all else that asks for a rank. A child of
a rank, such as a worker of a DataLoader, is told the numbers of that rank.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import fields

import torch  # noqa: F401  (the extension needs torch's libraries to be loaded)

from .. import _C
from .rank_record import Numbers, RankRecord, leave_record, parents_record, remove_record

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

# Of this process, kept because training loops ask often. None outside init … shutdown.
_own: RankRecord | None = None
# The record of the rank that this process was forked from. None in ranks.
_forked_from: RankRecord | None = None

# Once: fields() and asdict() fill Python's lists of free tuples, up to 2,000 of each length.
_NUMBERS = tuple(field.name for field in fields(Numbers))

# Whether the job ends here because an exception has ended the program.
_ends_in_failure = False

_actions: list[Callable[[], None]] = []
_last_actions: list[Callable[[], None]] = []

_OF_RANK = (
    "takes part in collectives. Make the call in the rank's process; rank(), size() and similar "
    "calls work here, too"
)


def when_job_ends(action: Callable[[], None]) -> None:
    """Has `action` called whenever this process leaves a job."""
    _actions.append(action)


def when_job_has_ended(action: Callable[[], None]) -> None:
    """Has `action` called when all ranks have left the job, or are waited for no more."""
    _last_actions.append(action)


def conclude_job() -> None:
    """Calls what asked with when_job_has_ended()."""
    if _parent() is None:
        for action in _last_actions:
            action()


def begin_job() -> None:
    """Takes down the numbers of this process, for itself and for its children."""
    global _forked_from, _own
    told = _C.topology()
    numbers = {name: getattr(told, name) for name in _NUMBERS}
    _own, _forked_from = leave_record(Numbers(**numbers)), None


def ends_in_failure() -> bool:
    """For what when_job_ends() calls: whether an exception has ended the program."""
    return _ends_in_failure


def end_job(*, in_failure: bool = False) -> None:
    """Forgets the job here, and in all that asked with when_job_ends(). Nothing in a child."""
    global _ends_in_failure, _own
    if _parent() is not None:
        return
    _own, _ends_in_failure = None, in_failure
    remove_record()
    for action in _actions:
        action()


def _parent() -> RankRecord | None:
    """The record of the rank whose child this process is. None in ranks.

    Looked up at each question: a process may import mydist first, and only then set the variables
    of a job of its own.
    """
    return None if _own is not None else _forked_from or parents_record()


def refuse_in_child(call: str, of_rank: str = _OF_RANK) -> None:
    """Raises ValueError in a child of a rank; `of_rank` is what the rank alone does, and advice.

    A plain `python` that the only rank of a job has started may become a rank: of its own job.
    """
    parent = _parent()
    if parent is not None and (parent is _forked_from or parent.is_one_of_many):
        raise ValueError(f"{call}: {parent.whose_child()}; only the rank itself {of_rank}")


def _know_parent() -> None:
    """In a forked child: remembers whose child it is."""
    global _forked_from, _own
    if _own is not None:
        _forked_from, _own = _own, None


os.register_at_fork(after_in_child=_know_parent)


def is_initialized() -> bool:
    """Whether this process is in a job, between init() and shutdown(). False in its children."""
    return _C.is_initialized()


def _job() -> Numbers:
    known = _own or _parent()
    if known is None:
        raise ValueError("mydist has not been initialized; call mydist.init() first")
    return known.numbers


def rank() -> int:
    """The number of this process in the job, 0 to size() - 1.

    Children of a rank, such as workers of a DataLoader, get the number of the rank here, and in
    the other questions of this kind. ValueError before init().
    """
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
