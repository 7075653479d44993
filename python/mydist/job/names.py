"""The names of collectives: the caller's, or automatic ones that match between ranks."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from .. import _C
from ..errors import MydistError
from . import topology
from .error_text import wrong_type

Answer = TypeVar("Answer")


class AutomaticName(str):
    """Knows what it was made for."""

    call: str
    process_set: int
    ends: Sequence[int] = ()  # Of a message between two ranks.


_counters: dict[tuple[int, str], Iterator[int]] = {}
_kept: dict[tuple[int, str], int] = {}  # How many names objects have.
# Of calls that send their parts one by one: the first part.
_FIRST_PARTS = {"broadcast_object": "size", "allgather_object": "sizes"}


def submit(name: str, call: Callable[..., Answer], *arguments: Any) -> Answer:
    """Makes a call that has this name, with these arguments.

    A call that is refused here is over for the other ranks, too: where the name is automatic, they
    get a MismatchError that names this rank. Else their next calls would meet other ones of this
    rank, and give wrong numbers.
    """
    try:
        return call(*arguments)
    except Exception as error:
        if isinstance(name, AutomaticName) and not _has_met(error):
            _tell_refusal(name)
        raise


def note_refusal(
    error: Exception,
    call: str,
    name: object,
    process_set: int | None,
    ends: Sequence[int] = (),
) -> None:
    """As `submit` for a call that is refused before it has a name; it uses up a number.

    Args:
        error: why.
        call: of which function.
        name: None for a call with an automatic name; of others the ranks that wait tell.
        process_set: the number of the set of the call; None: this rank is in no such set.
        ends: of a message, the rank that sends it and the one that gets it.
    """
    is_known = name is None and process_set is not None and topology.is_initialized()
    if is_known and not _has_met(error):
        assert process_set is not None
        refused = _automatic(f"{call}.noname", (process_set, call))
        refused.ends = ends
        _tell_refusal(refused)


def _has_met(error: Exception) -> bool:
    """Whether it came after the ranks have met, or of a signal handler while the call waited."""
    return isinstance(error, MydistError) or hasattr(error, "_mydist_has_met")


def _tell_refusal(name: AutomaticName) -> None:
    first, group = str(name), ""
    if name.call.startswith("grouped_"):
        first, group = f"{name}.0", str(name)
    elif name.call == "sparse_allreduce":
        first, group = f"{name}.indices", str(name)
    elif name.call in _FIRST_PARTS:
        first = part_name(name, _FIRST_PARTS[name.call])
    _tell(first, group, name.process_set, name.ends)


def _tell(name: str, group: str, process_set: int, ends: Sequence[int] = ()) -> None:
    # The core refuses this outside the set and after the job; then no rank waits for the call.
    with contextlib.suppress(ValueError, TypeError, MydistError):
        _C.tell_refusal(name, group, process_set, ends)


def part_name(name: str, part: str) -> str:
    """What a part of a call is called. The number stays at the end, where the core looks for it."""
    if isinstance(name, AutomaticName):
        return name.replace(".noname.", f".{part}.noname.")
    return f"{name}.{part}"


def restart_names(process_set: int | None = None) -> None:
    """Numbers automatic names from 1 again, of one process set or of all.

    So ranks agree on them after every init(), and after a set's number has been given to another.
    """
    numbers: tuple[dict[tuple[int, str], Any], ...] = (_counters, _kept)
    for counted in numbers:
        for key in [key for key in counted if process_set in (None, key[0])]:
            del counted[key]


def _automatic(stem: str, key: tuple[int, str]) -> AutomaticName:
    numbers = _counters.get(key)
    if numbers is None:
        numbers = _counters.setdefault(key, itertools.count(1))
    name = AutomaticName(f"{stem}.{next(numbers)}")
    name.process_set, name.call = key
    return name


def with_kept_name(
    kind: str, process_set: int, call: Callable[..., Answer], *arguments: Any
) -> tuple[str, Answer]:
    """Makes the first call of an object that keeps its name; gives the name and the answer.

    The call gets the arguments and the name, e.g. "sync_batch_norm.object.1". Of another form than
    those of calls, which the core takes for the same but for their number: two objects are not the
    same. A call that is refused leaves the name to the next object: no other rank has heard of it.
    """
    key = (process_set, f"{kind}.object")
    number = _kept.get(key, 0) + 1
    try:
        answer = call(*arguments, f"{kind}.object.{number}")
    except Exception as error:
        if _has_met(error):
            _kept[key] = number
        raise
    _kept[key] = number
    return f"{kind}.object.{number}", answer


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
