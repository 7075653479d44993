"""The names of collectives: the caller's, or automatic ones that match between ranks."""

from __future__ import annotations

import itertools

_counters: dict[tuple[int, str], itertools.count[int]] = {}


def restart_names(process_set: int | None = None) -> None:
    """Numbers automatic names from 1 again, of one process set or of all.

    So ranks agree on them after every init(), and after a set's number has been given to another.
    """
    for key in [key for key in _counters if process_set in (None, key[0])]:
        del _counters[key]


def resolve_name(call: str, name: str | None, process_set: int = 0) -> str:
    """`name`, or the next automatic one of this call, e.g. "allreduce.noname.1".

    Automatic names match between ranks when all ranks of a process set make their unnamed calls
    with it in one order; each set has its own, in which names have to be unique.
    """
    if name is None:
        counter = _counters.setdefault((process_set, call), itertools.count(1))
        return f"{call}.noname.{next(counter)}"
    if not isinstance(name, str):
        raise TypeError(
            f"{call}: name is {name!r} ({type(name).__qualname__}), expected a str or None"
        )
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
