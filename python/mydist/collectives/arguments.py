"""What every collective checks about its arguments before anything is enqueued."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ..job import set_table, topology
from ..job.error_text import wrong_type
from ..job.names import note_refusal
from ..job.process_set import ProcessSet, global_process_set
from ..reduce_op import Average, ReduceOp, Sum


def check_tensor(call: str, tensor: object) -> torch.Tensor:
    """The argument, which must be a tensor. Raises TypeError."""
    if isinstance(tensor, torch.Tensor):
        return tensor
    raise TypeError(
        f"{call}: got {type(tensor).__qualname__}, expected a torch.Tensor; convert it with "
        "torch.as_tensor()"
    )


def check_tensors(call: str, tensors: object) -> list[torch.Tensor]:
    """The argument, which must be a list or tuple of tensors. Raises TypeError or ValueError."""
    if not isinstance(tensors, (list, tuple)):
        raise TypeError(
            f"{call}: got {type(tensors).__qualname__}, expected a list or tuple of tensors"
        )
    if not tensors:
        raise ValueError(f"{call}: got an empty list, expected at least one tensor")
    kind = torch.Tensor  # looked up once
    for i, tensor in enumerate(tensors):
        if not isinstance(tensor, kind):
            raise TypeError(
                f"{call}: element {i} is {type(tensor).__qualname__}, expected a torch.Tensor; "
                "convert it with torch.as_tensor()"
            )
    return list(tensors)


def check_process_set(call: str, process_set: object) -> int:
    """The number of the set.

    Raises TypeError when it is no ProcessSet, ValueError when it has not been added to the job or
    this rank is not in it.
    """
    if process_set is global_process_set:
        return 0
    if isinstance(process_set, ProcessSet):
        return _check_member(call, process_set)
    expected = "a ProcessSet such as mydist.global_process_set"
    raise wrong_type(f"{call}: process_set", process_set, expected)


def set_number(process_set: object) -> int | None:
    """The number of the set; None when this rank is not in it. No set at all stands for the job."""
    try:
        return check_process_set("", process_set)
    except TypeError:
        return set_table.GLOBAL
    except ValueError:
        return None


@contextmanager
def refusal_noted(call: str, name: object, process_set: object) -> Iterator[None]:
    """Around the checks of a call: where they raise, ranks that wait for the call are told.

    For what is not called often; a context manager takes longer than `try`. See note_refusal().
    """
    try:
        yield
    except Exception as error:
        note_refusal(error, call, name, set_number(process_set))
        raise


def _check_member(call: str, process_set: ProcessSet) -> int:
    own = topology.rank()
    if process_set._current() is None:
        raise ValueError(f"{call}: {process_set!r} is not part of the job; {set_table.ADD_IT}")
    if own not in process_set.ranks:
        raise ValueError(
            f"{call}: rank {own} is not in {process_set!r}; only its members may call this, check "
            "process_set.included() first"
        )
    return process_set.process_set_id


def check_int(call: str, argument: str, value: object) -> int:
    """The argument, which must be an int that fits in 32 bits. Raises TypeError or ValueError."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise wrong_type(f"{call}: {argument}", value, "an int")
    number = int(value.__index__())
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{call}: {argument} is {number}, expected a rank of the job")
    return number


Splits = Sequence[int] | torch.Tensor | None


def check_splits(call: str, splits: object) -> list[int]:
    """The argument as a list of numbers of rows. Raises TypeError or ValueError."""
    if isinstance(splits, torch.Tensor):
        is_integer = not (splits.is_floating_point() or splits.is_complex())
        if splits.dim() != 1 or not is_integer or splits.dtype == torch.bool:
            raise ValueError(
                f"{call}: splits is a {splits.dtype} tensor of shape {list(splits.shape)}, "
                "expected integers in one dimension, one entry for each rank"
            )
        return [int(count) for count in splits.tolist()]
    if not isinstance(splits, (list, tuple)):
        raise TypeError(
            f"{call}: splits is {type(splits).__qualname__}, expected a list of ints, a 1-d "
            "integer tensor or None"
        )
    for i, count in enumerate(splits):
        if isinstance(count, bool) or not hasattr(count, "__index__"):
            raise TypeError(f"{call}: splits[{i}] is {count!r}, expected an int")
        if not -(2**63) <= int(count.__index__()) < 2**63:
            raise ValueError(f"{call}: splits[{i}] is {count}, expected a number of rows")
    return [int(count.__index__()) for count in splits]


def refuse_in_place_on_gradient(
    call: str, tensors: Sequence[torch.Tensor], instead: str = ""
) -> None:
    """Raises ValueError when autograd would lose track of what is written in place.

    `instead` is the call that does the same out of place, if there is one.
    """
    if not torch.is_grad_enabled():
        return
    for i, tensor in enumerate(tensors):
        if not tensor.requires_grad:
            continue
        which = f"tensor {i}" if len(tensors) > 1 else "the tensor"
        kind = "is a leaf that requires grad" if tensor.is_leaf else "requires grad"
        raise ValueError(
            f"{call}: {which} {kind}, so it cannot be changed in place while gradients are "
            f"recorded; {f'use {instead}(), or ' if instead else ''}call it under torch.no_grad()"
        )


class Reduction(NamedTuple):
    """What is computed: `postscale * op over ranks of (prescale * input)`."""

    op: ReduceOp
    prescale: float
    postscale: float


# The arguments of users: average, op, prescale_factor and postscale_factor.
Scaling = tuple[bool | None, ReduceOp | None, float, float]


def resolve_reduction(
    call: str, average: object, op: object, prescale: object, postscale: object
) -> Reduction:
    """The reduction that the arguments of a call describe. Raises TypeError or ValueError."""
    return Reduction(
        _resolve_op(call, average, op),
        _check_factor(call, "prescale_factor", prescale),
        _check_factor(call, "postscale_factor", postscale),
    )


def _resolve_op(call: str, average: object, op: object) -> ReduceOp:
    if average is not None and not isinstance(average, bool):
        expected = "True, False or None; pass a name as name=, an operation as op="
        raise wrong_type(f"{call}: average", average, expected)
    if op is None:
        return Average if average is None or average else Sum
    # Before `average`: Horovod scripts may have a compression in this place.
    if not isinstance(op, ReduceOp):
        ops = "mydist.Average, Sum, Min, Max, Product or Adasum"
        raise wrong_type(f"{call}: op", op, f"{ops}; pass a Compressor as compression=")
    if average is not None:
        raise ValueError(
            f"{call}: both average={average} and op={op} are given, expected one of them; "
            "average=True means op=Average, average=False op=Sum"
        )
    return op


def _check_factor(call: str, argument: str, value: Any) -> float:
    if type(value) is float:  # the usual case, and the rest takes longer
        return value
    if isinstance(value, bool) or not (
        isinstance(value, (int, float)) or hasattr(value, "__float__")
    ):
        raise wrong_type(f"{call}: {argument}", value, "a number")
    return float(value)
