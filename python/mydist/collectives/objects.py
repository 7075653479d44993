"""Objects: broadcasting and gathering any Python object that can be pickled.

The bytes are made and read by Python's pickle. Unpickling runs code that the sender chooses, so
these calls trust every rank of the job, as the rest of the job does; never feed them data that
came from outside. Sizes travel first, then the bytes, so no rank has to know them beforehand.
"""

from __future__ import annotations

import ctypes
import pickle
from typing import Any

import torch

from ..errors import MydistError
from ..job.process_set import ProcessSet, global_process_set
from ..job.topology import rank, size
from .allgather_calls import allgather
from .arguments import check_int, check_process_set
from .broadcast_calls import broadcast_

__all__ = ["allgather_object", "broadcast_object"]


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Returns the object of rank `root_rank` on every rank. Blocking; all ranks must call it.

    Args:
        obj: on the root any object that pickle accepts; ignored elsewhere.
        root_rank: global rank of the sender.
        name: what to call it in messages and the timeline; equal on all ranks.
        process_set: the ranks that take part; this one is among them.

    Returns:
        `obj` itself on the root, an equal object made by pickle on the others.

    Raises:
        ValueError: `root_rank` is not a rank of the process set, or this rank is not in it.
        TypeError: `root_rank` is no int, or `process_set` no ProcessSet.
        MydistError: the root could not pickle its object (the root raises pickle's own error), or
            the job failed; see mydist.errors.
    """
    name = name or "broadcast_object.noname"
    _check_root(check_int("broadcast_object", "root_rank", root_rank), process_set)
    is_root = rank() == root_rank
    payload, failure = _dumps(obj) if is_root else (b"", None)
    header = torch.tensor([len(payload), failure is not None], dtype=torch.int64)
    broadcast_(header, root_rank, name=f"{name}.size", process_set=process_set)
    data = _to_tensor(payload) if is_root else torch.empty(int(header[0]), dtype=torch.uint8)
    broadcast_(data, root_rank, name=f"{name}.bytes", process_set=process_set)
    if failure is not None:
        raise failure
    if header[1]:
        raise MydistError(
            f"broadcast_object '{name}': rank {root_rank} could not pickle its object: "
            f"{_to_bytes(data).decode()}"
        )
    return obj if is_root else pickle.loads(_to_bytes(data))


def allgather_object(
    obj: Any,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> list[Any]:
    """Returns the objects of all ranks, in rank order, on every rank. Blocking.

    Ranks that have called join() have none; the list is shorter by as many.

    Args:
        obj: any object that pickle accepts.
        name: what to call it in messages and the timeline; equal on all ranks.
        process_set: the ranks that take part; this one is among them.

    Raises:
        ValueError: this rank is not in `process_set`.
        TypeError: `process_set` is no ProcessSet.
        MydistError: some rank could not pickle its object; the message names all of them.
            That rank itself raises pickle's own error. Or the job failed; see mydist.errors.
    """
    name = name or "allgather_object.noname"
    check_process_set("allgather_object", process_set)
    payload, failure = _dumps(obj)
    header = torch.tensor([[len(payload), failure is not None, rank()]], dtype=torch.int64)
    headers = allgather(header, name=f"{name}.sizes", process_set=process_set)
    data = allgather(_to_tensor(payload), name=f"{name}.bytes", process_set=process_set)
    if failure is not None:
        raise failure
    parts = [_to_bytes(part) for part in torch.split(data, headers[:, 0].tolist())]
    failures = [
        f"rank {sender}: {part.decode()}"
        for (_, failed, sender), part in zip(headers.tolist(), parts, strict=True)
        if failed
    ]
    if failures:
        raise MydistError(
            f"allgather_object '{name}': objects could not be pickled: {'; '.join(failures)}"
        )
    return [pickle.loads(part) for part in parts]


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


def _dumps(obj: Any) -> tuple[bytes, Exception | None]:
    """The pickled object, or the text of the error and the error: peers wait for an answer."""
    try:
        return pickle.dumps(obj, protocol=pickle.HIGHEST_PROTOCOL), None
    except Exception as error:  # pickle calls code of the object, which may raise anything
        return f"{type(error).__name__}: {error}".encode(), error


def _to_tensor(payload: bytes) -> torch.Tensor:
    """The bytes as a tensor of shape (len(payload),), dtype uint8."""
    if not payload:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(payload), dtype=torch.uint8)


def _to_bytes(tensor: torch.Tensor) -> bytes:
    """The reverse of `_to_tensor`; not through numpy, which torch does not insist on."""
    tensor = tensor.contiguous()
    return ctypes.string_at(tensor.data_ptr(), tensor.numel()) if tensor.numel() else b""
