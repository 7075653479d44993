"""Handles: ints that stand for what has been enqueued, and what to make of it once complete."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch

from .. import _C
from ..job.error_text import check_whole

__all__ = ["poll", "synchronize"]

Finish = Callable[[list[torch.Tensor]], Any]

_finishers: dict[int, Finish] = {}


class Waiter(Protocol):
    """Something else than a collective that a handle stands for."""

    def is_over(self) -> bool:
        """Whether wait() would not block."""

    def wait(self) -> Any:
        """Blocks until it is over; gives what the call gives, or raises its error."""


# Their handles are numbered from here, far above those of collectives.
_FIRST_WAITER = 2**62
_waiters: dict[int, Waiter] = {}
_waiter_numbers = itertools.count(_FIRST_WAITER)


def remember_waiter(waiter: Waiter) -> int:
    """A handle for poll() and synchronize()."""
    handle = next(_waiter_numbers)
    _waiters[handle] = waiter
    return handle


def remember(handle: int, finish: Finish) -> int:
    """Keeps how to turn the handle's outputs into what the user gets. Returns the handle."""
    _finishers[handle] = finish
    return handle


def poll(handle: int) -> bool:
    """Whether synchronize(handle) would return without waiting. Never blocks.

    On a GPU the result may still be on its way then.

    Args:
        handle: what an `_async` function returned.

    Raises:
        ValueError: the handle was already synchronized, or no _async call returned it.
        TypeError: it is no int.
    """
    if _check(handle) >= _FIRST_WAITER:
        return _waiter_of(handle).is_over()
    return _C.poll(handle)


def synchronize(handle: int) -> Any:
    """Waits for an `_async` call and returns what its synchronous form would have returned.

    A tensor; a list of tensors for the grouped forms; `(output, received_splits)` for alltoall with
    splits. Other threads run on while this one waits, and Ctrl-C interrupts the wait without using
    up the handle. On a GPU the current stream goes on behind the result; the host does not wait for
    the GPU.

    Args:
        handle: what an `_async` function returned. It can be synchronized once.

    Raises:
        ValueError: the handle was already synchronized, or no _async call returned it, or the
            current stream is being captured into a CUDA graph.
        TypeError: it is no int.
        MismatchError: the ranks disagree about the tensor; nothing was written to it.
        MydistError: the job failed; see mydist.errors.
    """
    if _check(handle) >= _FIRST_WAITER:
        return _synchronize_waiter(handle)
    try:
        outputs = _C.wait(handle)
    except ValueError:  # not our handle, or another thread's by now
        raise
    except Exception:  # not KeyboardInterrupt, after which the handle is still good
        _finishers.pop(handle, None)
        raise
    finish = _finishers.pop(handle, None)
    return outputs if finish is None else finish(outputs)


def _waiter_of(handle: int) -> Waiter:
    waiter = _waiters.get(handle)
    if waiter is None:
        raise ValueError(
            f"handle {handle} is unknown: it was already synchronized, or no _async call returned "
            "it. Each handle can be synchronized once"
        )
    return waiter


def _synchronize_waiter(handle: int) -> Any:
    waiter = _waiter_of(handle)
    try:
        result = waiter.wait()
    except Exception:  # not KeyboardInterrupt, after which the handle is still good
        _waiters.pop(handle, None)
        raise
    _waiters.pop(handle, None)
    return result


def synchronize_all(handles: Iterable[int]) -> list[Any]:
    """What synchronize() returns for each handle. Consumes all of them before it raises an error.

    Raises: as synchronize, the first error.
    """
    results = []
    first_error: Exception | None = None
    for handle in handles:
        try:
            results.append(synchronize(handle))
        except Exception as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
    return results


def first(outputs: list[torch.Tensor]) -> torch.Tensor:
    """What is left of the outputs of a call with one."""
    return outputs[0]


def first_if_any(outputs: list[torch.Tensor]) -> torch.Tensor | None:
    """The same of a call whose root alone has an output."""
    return outputs[0] if outputs else None


def _check(handle: int) -> int:
    check_whole("handle", handle, "the int that an _async function returned")
    if not 0 < handle < 2**63:
        raise ValueError(f"handle {handle} is unknown: handles are numbered from 1")
    return handle
