"""Objects: broadcasting and gathering any Python object that can be pickled.

The bytes are made by pickle, and by cloudpickle for what pickle refuses: lambdas, closures, local
classes. Functions of the script itself (`__main__`) travel whole as well, since ranks may define
different ones; its classes do where the receiver has none of that name. Unpickling runs code that
the sender chooses, so these calls trust every rank of the job, as the rest of the job does; never
feed them data that came from outside. Sizes travel first, then the bytes, so no rank has to know
them beforehand. Last, the ranks tell each other whether all could rebuild the objects: all return,
or all raise.
"""

from __future__ import annotations

import ctypes
import json
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import MydistError
from ..job.error_text import text_of
from ..job.names import part_name, resolve_name
from ..job.pickling import dumps
from ..job.process_set import ProcessSet, global_process_set
from ..job.topology import rank, size
from ..reduce_op import Max
from .arguments import check_int, check_process_set, refusal_noted
from .moves import allgather, broadcast_
from .reductions import allreduce

__all__ = ["allgather_object", "broadcast_object"]

_MOST_REASONS = 4  # In one message.


@dataclass(frozen=True)
class _Call:
    """One call, as messages name it and its parts are named."""

    function: str
    name: str
    process_set: ProcessSet


@dataclass(frozen=True)
class _Parcel:
    """What one rank sends: the pickled object, or the text of the error."""

    sender: int
    data: bytes
    failed: bool


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the object of rank `root_rank` on every rank. Blocking; all ranks must call it.

    Args:
        obj: on the root any object that pickle or cloudpickle accepts; ignored elsewhere.
        root_rank: global rank of the sender.
        name: what to call it in messages and the timeline; equal on all ranks.
        process_set: the ranks that take part; this one is among them.

    Returns:
        `obj` itself on the root, an equal object made by pickle on the others. A function of the
        root's script is the root's function everywhere, with copies of the globals it uses; an
        object of one of the script's classes belongs to the receiver's class of that name.

    Raises:
        ValueError: `root_rank` is not a rank of the process set, or this rank is not in it.
        TypeError: `root_rank` is no int, or `process_set` no ProcessSet.
        MydistError: the root could not pickle its object (the root raises pickle's own error, with
            a note that names the call); a rank could not rebuild the object (on every rank); or the
            job failed, see mydist.errors.
    """
    function = "broadcast_object"
    with refusal_noted(function, name or None, process_set):
        _check_root(check_int(function, "root_rank", root_rank), process_set)
        set_id = check_process_set(function, process_set)
    call = _Call(function, resolve_name(function, name or None, set_id), process_set)
    is_root = rank() == root_rank
    for by_value in (False, True):  # Again only where some rank has not what the names stand for.
        parcel, failure = _pack(obj, by_value) if is_root else (None, None)
        parcel = _broadcast(parcel, root_rank, call)
        _check_pickled([parcel], failure, call)
        objects, reasons = ([obj], {}) if is_root else _unpack([parcel])
        if not _any_rank(bool(reasons), call):
            return objects[0]
    raise _cannot_rebuild(obj if is_root else None, reasons, call)


def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the objects of all ranks, in rank order, on every rank. Blocking.

    Ranks that have called join() have none; the list is shorter by as many.

    Args:
        obj: any object that pickle or cloudpickle accepts.
        name: what to call it in messages and the timeline; equal on all ranks.
        process_set: the ranks that take part; this one is among them.

    Raises:
        ValueError: this rank is not in `process_set`.
        TypeError: `process_set` is no ProcessSet.
        MydistError: some rank could not pickle its object; the message names all of them, and that
            rank itself raises pickle's own error, with that as a note. Or a rank could not rebuild
            an object, on every rank. Or the job failed; see mydist.errors.
    """
    function = "allgather_object"
    with refusal_noted(function, name or None, process_set):
        set_id = check_process_set(function, process_set)
    call = _Call(function, resolve_name(function, name or None, set_id), process_set)
    for by_value in (False, True):  # As in broadcast_object().
        parcel, failure = _pack(obj, by_value)
        parcels = _gather(parcel, call)
        _check_pickled(parcels, failure, call)
        objects, reasons = _unpack(parcels)
        if not _any_rank(bool(reasons), call):
            return objects
    raise _cannot_rebuild(obj, reasons, call)


def _check_root(root_rank: int, process_set: ProcessSet) -> None:
    check_process_set("broadcast_object", process_set)
    if root_rank in process_set.ranks:
        return
    if process_set is global_process_set:
        expected = f"a rank from 0 to {size() - 1}"
    else:
        expected = f"one of the ranks {process_set.ranks} of the process set"
    raise ValueError(
        f"broadcast_object: root_rank is {root_rank}, expected {expected}; pass the global rank of "
        "the sender"
    )


def _pack(obj: Any, by_value: bool) -> tuple[_Parcel, Exception | None]:
    """The parcel, and the error if there is one: peers wait for an answer."""
    try:
        return _Parcel(rank(), dumps(obj, by_value), False), None
    except Exception as error:  # pickle calls code of the object, which may raise anything
        text = f"({type(obj).__qualname__}): {text_of(error)}"
        return _Parcel(rank(), text.encode("utf-8", "backslashreplace"), True), error


def _unpack(parcels: Sequence[_Parcel]) -> tuple[list[Any], dict[int, str]]:
    """The objects, and for each sender whose object cannot be rebuilt here the reason."""
    objects: list[Any] = []
    reasons: dict[int, str] = {}
    for parcel in parcels:
        try:
            objects.append(pickle.loads(parcel.data))
        # pickle calls code of the object, which may raise anything; the other ranks wait for us.
        except (Exception, SystemExit) as error:
            reasons[parcel.sender] = text_of(error)
    return objects, reasons


def _broadcast(parcel: _Parcel | None, root_rank: int, call: _Call) -> _Parcel:
    """The root's parcel on every rank; None elsewhere."""
    numbers = [0, 0] if parcel is None else [len(parcel.data), parcel.failed]
    header = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    broadcast_(header, root_rank, name=part_name(call.name, "size"), process_set=call.process_set)
    if parcel is not None:
        data = _to_tensor(parcel.data)
    else:
        data = torch.empty(int(header[0]), dtype=torch.uint8, device="cpu")
    broadcast_(data, root_rank, name=part_name(call.name, "bytes"), process_set=call.process_set)
    return parcel or _Parcel(root_rank, _to_bytes(data), bool(header[1]))


def _gather(parcel: _Parcel, call: _Call) -> list[_Parcel]:
    """The parcels of all ranks that have not joined, in rank order."""
    numbers = [[len(parcel.data), parcel.failed, parcel.sender]]
    header = torch.tensor(numbers, dtype=torch.int64, device="cpu")
    headers = allgather(header, name=part_name(call.name, "sizes"), process_set=call.process_set)
    data = allgather(
        _to_tensor(parcel.data), name=part_name(call.name, "bytes"), process_set=call.process_set
    )
    parts = torch.split(data, headers[:, 0].tolist())
    return [
        _Parcel(sender, _to_bytes(part), bool(failed))
        for (_, failed, sender), part in zip(headers.tolist(), parts, strict=True)
    ]


def _any_rank(mine: bool, call: _Call) -> bool:
    """Whether it is so on any rank."""
    flag = torch.tensor([mine], dtype=torch.int32, device="cpu")
    name = part_name(call.name, "outcome")
    return bool(allreduce(flag, name=name, op=Max, process_set=call.process_set))


def _check_pickled(parcels: Sequence[_Parcel], own: Exception | None, call: _Call) -> None:
    """Raises on every rank when some rank could not pickle its object; there the error itself."""
    failures = [f"rank {p.sender} {p.data.decode()}" for p in parcels if p.failed]
    text = f"{call.function} '{call.name}': could not pickle the object of {'; '.join(failures)}"
    if own is not None:
        own.add_note(f"mydist: {text}")
        raise own
    if failures:
        raise MydistError(text)


def _cannot_rebuild(mine: Any, reasons: dict[int, str], call: _Call) -> MydistError:
    """The error that all ranks raise. Collective.

    Args:
        mine: the object that this rank has sent.
        reasons: by sender, why this rank cannot rebuild its object.
    """
    report = [rank(), type(mine).__qualname__, list(reasons.items())]
    gathered = _gather(_Parcel(rank(), json.dumps(report).encode(), False), call)
    reports = [json.loads(parcel.data) for parcel in gathered]
    kinds = {sender: kind for sender, kind, _ in reports}
    texts = [
        f"the {kinds.get(sender, 'object')} of rank {sender} on rank {receiver}: {reason}"
        for receiver, _, of_receiver in reports
        for sender, reason in of_receiver
    ]
    more = f"; and {len(texts) - _MOST_REASONS} more" if len(texts) > _MOST_REASONS else ""
    return MydistError(
        f"{call.function} '{call.name}': cannot rebuild {'; '.join(texts[:_MOST_REASONS])}{more}. "
        "Define the class in a module that every rank can import, or send plain values"
    )


def _to_tensor(payload: bytes) -> torch.Tensor:
    """The bytes as a tensor of shape (len(payload),), dtype uint8."""
    if not payload:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8)


def _to_bytes(tensor: torch.Tensor) -> bytes:
    """The reverse of `_to_tensor`; not through numpy, which torch does not insist on."""
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel()) if tensor.numel() else b""
