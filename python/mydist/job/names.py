"""The names of collectives: the caller's, or automatic ones that match between ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, TypeVar

from ..errors import MydistError
from . import topology
from .error_text import wrong_type

Answer = TypeVar("Answer")


class _Numbers:
    """1, 2, 3 and so on, but first those that were given back, the smallest first."""

    def __init__(self) -> None:
        self._unused = itertools.count(1)
        self._returned: list[int] = []

    def take(self) -> int:
        """The next number; no two threads get the same."""
        try:
            return self._returned.pop() if self._returned else next(self._unused)
        except IndexError:  # another thread was faster
            return next(self._unused)

    def give_back(self, number: int) -> None:
        """For one that the other ranks are going to use, too."""
        self._returned.append(number)
        self._returned.sort(reverse=True)


class AutomaticName(str):
    """Knows the number in it."""

    numbers: _Numbers
    number: int


_counters: dict[tuple[int, str], _Numbers] = {}


def submit(name: str, call: Callable[..., Answer], *arguments: Any) -> Answer:
    """Makes a call that has this name, with these arguments.

    A call that is refused has not been heard of by any other rank. Its number, if the name is
    automatic, is that of this rank's next call then. Every exception is a refusal but MydistError,
    which comes after the ranks have met, and what a signal handler raises while the call waits.
    """
    try:
        return call(*arguments)
    except Exception as error:
        has_met = isinstance(error, MydistError) or hasattr(error, "_mydist_has_met")
        if isinstance(name, AutomaticName) and not has_met:
            name.numbers.give_back(name.number)
        raise


def restart_names(process_set: int | None = None) -> None:
    """Numbers automatic names from 1 again, of one process set or of all.

    So ranks agree on them after every init(), and after a set's number has been given to another.
    """
    for key in [key for key in _counters if process_set in (None, key[0])]:
        del _counters[key]


def _automatic(stem: str, key: tuple[int, str]) -> AutomaticName:
    numbers = _counters.get(key)
    if numbers is None:
        numbers = _counters.setdefault(key, _Numbers())
    number = numbers.take()
    name = AutomaticName(f"{stem}.{number}")
    name.numbers, name.number = numbers, number
    return name


def resolve_kept_name(kind: str, process_set: int = 0) -> str:
    """A name for an object that keeps it, e.g. "sync_batch_norm.object.1".

    Of another form than those of calls, which the core takes for the same but for their number:
    two objects are not the same.
    """
    return _automatic(f"{kind}.object", (process_set, f"{kind}.object"))


def resolve_name(call: str, name: str | None, process_set: int = 0) -> str:
    """`name`, or the next automatic one of this call, e.g. "allreduce.noname.1".

    The core knows their form (csrc/base/call_name.h): they may be part of a frozen step, and
    share lanes of the timeline.

    Automatic names match between ranks when all ranks of a process set make their unnamed calls
    with it in one order; each set has its own, in which names have to be unique.

    Raises TypeError or ValueError for what is no name, and ValueError in a child of a rank.
    """
    topology.refuse_in_child(call)
    if name is None:
        return _automatic(f"{call}.noname", (process_set, call))
    if not isinstance(name, str):
        raise wrong_type(f"{call}: name", name, "a str or None")
    if not name:
        raise ValueError(f"{call}: name is empty, expected a str that all ranks use, or None")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{call}: name is {name!r}, which cannot be sent to other ranks: {error.reason}. "
            "Expected text that UTF-8 can express, or None"
        ) from None
    return name
