"""The names of collectives: the caller's, or automatic ones that match between ranks."""

from __future__ import annotations

import itertools

_counters: dict[str, itertools.count[int]] = {}


def restart_names() -> None:
    """Numbers automatic names from 1 again, so that ranks agree on them after every init()."""
    _counters.clear()


def resolve_name(call: str, name: str | None) -> str:
    """`name`, or the next automatic one of this call, e.g. "allreduce.noname.1".

    Automatic names match between ranks when all ranks make their unnamed calls in one order.
    """
    if name is None:
        counter = _counters.setdefault(call, itertools.count(1))
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
