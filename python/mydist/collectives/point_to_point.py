"""send and recv: a tensor from one rank to another; no other rank takes part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from .. import _C
from ..job import topology
from ..job.names import AutomaticName, note_refusal, resolve_name, submit
from ..job.process_set import ProcessSet, global_process_set
from .arguments import (
    check_int,
    check_process_set,
    check_tensor,
    refuse_in_place_on_gradient,
    set_number,
)
from .handles import first, remember

__all__ = ["recv", "recv_async", "send", "send_async"]

_Answer = TypeVar("_Answer")  # A handle, or the outputs.


def send(
    tensor: torch.Tensor,
    destination: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Sends a tensor to one rank, which calls recv(). Carries no gradient.

    Blocks until the receiver has called recv() for it; two ranks that both send first and receive
    afterwards wait for ever, so exchanges use send_async().

    Args:
        tensor: any shape, equal to the receiver's; not changed.
        destination: the global rank that receives it; not this one.
        name: equal to the receiver's; None: the k-th unnamed send from here to there meets the k-th
            unnamed recv there from here. Other pairs of ranks may use the same name.
        process_set: a set that both are in, the same on both.

    Raises:
        ValueError: bad argument, unsupported kind of tensor, or a name already in flight.
        TypeError: wrong type or unsupported dtype.
        MismatchError: the receiver's tensor has another shape or dtype; raised on both ranks.
        MydistError: the job failed; see mydist.errors.
    """
    _transfer(_C.send_receive, "send", tensor, destination, name, process_set)


def send_async(
    tensor: torch.Tensor,
    destination: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Enqueues a send and returns a handle for poll() and synchronize(), which gives None.

    Never waits for other ranks. The tensor must not be written until synchronize() has returned.
    Arguments and errors as in send().
    """
    enqueue = _C.enqueue_send_receive
    handle = _transfer(enqueue, "send", tensor, destination, name, process_set)
    return remember(handle, lambda outputs: None)


def recv(
    tensor: torch.Tensor,
    source: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Receives what one rank sends with send() into `tensor`, which is returned.

    Blocks until it has arrived. Carries no gradient.

    Args:
        tensor: where to put it; the shape and dtype are equal to the sender's. Replaced in place.
        source: the global rank that sends it; not this one.
        name: equal to the sender's; None as in send().
        process_set: a set that both are in, the same on both.

    Raises:
        ValueError: bad argument, unsupported kind of tensor, a tensor that requires grad while
            gradients are recorded or whose elements share memory, or a name already in flight.
        TypeError: wrong type or unsupported dtype.
        MismatchError: the sender's tensor has another shape or dtype; raised on both ranks.
        MydistError: the job failed; see mydist.errors.
    """
    return _transfer(_C.send_receive, "recv", tensor, source, name, process_set)[0]


def recv_async(
    tensor: torch.Tensor,
    source: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """Enqueues a recv and returns a handle for poll() and synchronize(), which gives the tensor.

    Never waits for other ranks. The tensor must not be used until synchronize() has returned.
    Arguments and errors as in recv().
    """
    enqueue = _C.enqueue_send_receive
    return remember(_transfer(enqueue, "recv", tensor, source, name, process_set), first)


def _transfer(
    function: Callable[..., _Answer],
    call: str,
    tensor: torch.Tensor,
    peer: int,
    name: str | None,
    process_set: ProcessSet,
) -> _Answer:
    """What the function of the binding answers to the call, send or recv."""
    receives = call == "recv"
    try:
        checked, set_id = _check(call, receives, tensor, peer, process_set)
    except Exception as error:
        _note_refusal(error, receives, peer, name, process_set)
        raise
    own = topology.rank()
    source, destination = (peer, own) if receives else (own, peer)
    # Names are per pair of ranks, so that a ring may call all its messages the same.
    route = f"{source}->{destination}"
    if name is None:
        full_name = resolve_name(f"send {route}", None, set_id)
        assert isinstance(full_name, AutomaticName)
        full_name.ends = (source, destination)
    else:
        full_name = f"{resolve_name(call, name)} {route}"
    return submit(full_name, function, checked, source, destination, full_name, set_id)


def _note_refusal(
    error: Exception, receives: bool, peer: object, name: str | None, process_set: object
) -> None:
    """Tells the other end, where the call says which rank that is."""
    number = set_number(process_set) if topology.is_initialized() else None
    if number is None or not isinstance(peer, int):
        return
    own = topology.rank()
    members = process_set.ranks if isinstance(process_set, ProcessSet) else range(topology.size())
    if peer in members and peer != own:
        source, destination = (peer, own) if receives else (own, peer)
        call = f"send {source}->{destination}"
        note_refusal(error, call, name, number, (source, destination))


def _check(
    call: str, receives: bool, tensor: torch.Tensor, peer: int, process_set: ProcessSet
) -> tuple[torch.Tensor, int]:
    """The tensor, and the number of the set. Raises ValueError and TypeError."""
    checked = check_tensor(call, tensor)
    if receives:
        refuse_in_place_on_gradient(call, [checked])
    other = check_int(call, "source" if receives else "destination", peer)
    own, set_id = topology.rank(), check_process_set(call, process_set)
    if other == own:
        raise ValueError(
            f"{call}: rank {own} is this process itself, expected another rank; use "
            "tensor.clone() or copy_()"
        )
    if other not in process_set.ranks:
        raise ValueError(
            f"{call}: rank {other} is not in {process_set!r} with ranks {process_set.ranks}; pass "
            "the global rank of a member"
        )
    return checked, set_id
