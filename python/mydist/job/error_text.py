"""Texts of errors: wrong arguments, exceptions in other messages, and ranks that differ."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ..errors import CollectiveTimeoutError

_SHOWN_NAMES = 5


def wrong_type(what: str, value: object, expected: str) -> TypeError:
    """Of an argument; `what` names the call and the argument."""
    return TypeError(f"{what} is {value!r} ({type(value).__qualname__}), expected {expected}")


def check_whole(what: str, value: Any, expected: str = "an int") -> int:
    """The argument, which must be an int and no bool. Raises TypeError."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong_type(what, value, expected)
    return value


def check_state(owner: str, state: Mapping[str, Any], keys: Iterable[str]) -> None:
    """Raises ValueError unless the state has the keys of what `owner`.state_dict() gives."""
    missing = [key for key in keys if key not in state]
    if missing:
        raise ValueError(
            f"{owner}.load_state_dict: the state lacks {', '.join(missing)}; expected what "
            f"state_dict() of a {owner} returned"
        )


def init_timeout(text: str, missing: Sequence[int] = ()) -> CollectiveTimeoutError:
    """The error of an init() that waited in vain, for these ranks as far as they are known."""
    error = CollectiveTimeoutError(text)
    place = {"operation": "init", "phase": "start", "ranks": list(missing)}
    error.failure = {**error.failure, **place}
    return error


def text_of(error: BaseException) -> str:
    """The class and the text. Never raises, also where the exception's own `__str__` does."""
    name = type(error).__qualname__
    try:
        return f"{name}: {error}"
    except Exception as failure:
        return f"{name} (its text is unavailable: __str__ raised {type(failure).__qualname__})"


def difference_text(
    what: str, table: Mapping[int, str], differing: Sequence[str], hint: str
) -> str:
    """The text of the error: the ranks by what they have, the largest group first."""
    groups: dict[str, list[int]] = {}
    for rank, value in sorted(table.items()):
        groups.setdefault(value, []).append(rank)
    lines = [
        f"  {ranks_text(ranks)}: {value}"
        for value, ranks in sorted(groups.items(), key=lambda item: -len(item[1]))
    ]
    if len(differing) > 1:
        shown = ", ".join(f"'{name}'" for name in differing[:_SHOWN_NAMES])
        more = ", …" if len(differing) > _SHOWN_NAMES else ""
        lines.append(f"{len(differing)} parameters differ: {shown}{more}")
    return "\n".join([f"{what}:", *lines, hint])


def ranks_text(ranks: Sequence[int]) -> str:
    """ "rank 1" or "ranks 0, 2-3" of ascending ranks."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    shown = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"
