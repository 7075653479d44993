"""The `_async` forms of the collectives, and the handles that they return.

They are mydist's collectives with Horovod's order of arguments and its numbers: a factor is
multiplied in float32, and an average multiplies the sum by one factor, as Horovod's core does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ... import reduce_op as own_ops
from ...collectives import handles, moves, reductions
from ...collectives.arguments import refusal_noted
from ..common.exceptions import HorovodInternalError
from ..common.process_sets import ProcessSet, global_process_set, own_set
from ..common.util import get_average_backwards_compatibility_fun

__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "Product",
    "Sum",
    "allgather_async",
    "allreduce_async",
    "allreduce_async_",
    "alltoall_async",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather_async",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter_async",
    "handle_average_backwards_compatibility",
    "poll",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]

Tensors = Sequence[torch.Tensor]
Finish = Callable[[Any], Any]

# Horovod's numbers.
Average, Sum, Adasum, Min, Max, Product = range(6)
_OWN_OPS = (
    own_ops.Average,
    own_ops.Sum,
    own_ops.Adasum,
    own_ops.Min,
    own_ops.Max,
    own_ops.Product,
)


class _Ops:
    """What stands for `average=True` and `average=False`."""

    Average = Average
    Sum = Sum


handle_average_backwards_compatibility = get_average_backwards_compatibility_fun(_Ops)

# By handle: what to make of what mydist gives; and how calls have ended that were only polled.
_handle_map: dict[int, Finish] = {}
_ended: dict[int, Any] = {}


def forget_handles() -> None:
    """Called when a job begins."""
    _handle_map.clear()
    _ended.clear()


def poll(handle: int) -> bool:
    """Whether the result is there, scaled and in its place. ValueError for a handle used up."""
    if handle in _ended:
        return True
    if not handles.poll(handle):
        return False
    try:
        _ended[handle] = _finish(handle)
    except Exception as error:  # For synchronize().
        _ended[handle] = error
    return True


def synchronize(handle: int) -> Any:
    """Waits for an `_async` call and returns its result; None for a handle that is used up.

    Raises HorovodInternalError when the ranks disagree or the job has failed.
    """
    if handle in _ended:
        result = _ended.pop(handle)
        if isinstance(result, Exception):
            raise result
        return result
    return _finish(handle) if handle in _handle_map else None


def _finish(handle: int) -> Any:
    try:
        result = handles.synchronize(handle)
    except Exception:  # Not KeyboardInterrupt: the call goes on.
        _handle_map.pop(handle, None)
        raise
    return _handle_map.pop(handle)(result)


def _named(call: str, name: str | None) -> str | None:
    """One name may be that of an allreduce and an allgather at once, as in Horovod; "" is none."""
    return f"{call}.{name}" if name else None


def _remember(handle: int, finish: Finish) -> int:
    _handle_map[handle] = finish
    return handle


def _checked(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, without what autograd knows of it."""
    if tensor.layout != torch.strided:
        raise ValueError(_unsupported(tensor))
    if not tensor.is_contiguous():
        raise ValueError("Tensor is required to be contiguous.")
    return tensor.data


def _unsupported(tensor: torch.Tensor) -> str:
    return f"Tensor type {tensor.type()} is not supported."


def _submit(submit: Callable[[], int], tensor: torch.Tensor, finish: Finish) -> int:
    try:
        return _remember(submit(), finish)
    except TypeError as error:
        if f"{tensor.dtype} is not supported".removeprefix("torch.") not in str(error):
            raise
        raise ValueError(_unsupported(tensor)) from None


class _WrongOpError(ValueError):
    pass


def _own_op(op: Any) -> own_ops.ReduceOp:
    if isinstance(op, own_ops.ReduceOp):
        return op
    if op not in range(len(_OWN_OPS)):
        raise _WrongOpError("Reduction op type not supported.")
    return _OWN_OPS[op]


@contextmanager
def _checks_of_reduction(stem: str, is_group: bool, name: str | None, own: Any) -> Iterator[None]:
    """As refusal_noted(); a wrong op is a HorovodInternalError."""
    try:
        with refusal_noted(f"grouped_{stem}" if is_group else stem, name, own):
            yield
    except _WrongOpError as error:
        raise HorovodInternalError(str(error)) from None


class _Scaled:
    """What a reduction multiplies: the inputs before mydist gets them, its results afterwards.

    Integers are left to mydist, whose averages do not wrap.
    """

    def __init__(self, tensors: Tensors, op: int, before: float, after: float, size: int) -> None:
        self.op = _own_op(op)
        self.factors = (before, after)
        self._before = self._after = 1.0
        if all(tensor.is_floating_point() or tensor.is_complex() for tensor in tensors):
            self.factors = (1.0, 1.0)
            self._before, self._after = before, after
            if self.op == own_ops.Average:
                self.op, self._after = own_ops.Sum, after / size

    @property
    def copies(self) -> bool:
        """Whether mydist gets other tensors: a refused call leaves those of the program alone."""
        return self._before != 1.0

    def inputs(self, tensors: Tensors) -> list[torch.Tensor]:
        """What mydist gets."""
        data = [_checked(tensor) for tensor in tensors]
        return [tensor.mul(self._before) for tensor in data] if self.copies else data

    def outputs(self, tensors: Tensors) -> None:
        """Scales what mydist gives, in place."""
        if self._after != 1.0:
            for tensor in tensors:
                tensor.data.mul_(self._after)


def _start_allreduce(
    tensors: Tensors,
    name: str | None,
    op: int,
    factors: tuple[float, float],
    process_set: ProcessSet,
    in_place: bool,
    is_group: bool,
) -> int:
    own = own_set(process_set)
    with _checks_of_reduction("allreduce", is_group, name, own):
        scaled = _Scaled(tensors, op, *factors, own.size())
        given = scaled.inputs(tensors)
    lies_there = in_place and not scaled.copies
    call = getattr(
        reductions, f"{'grouped_' if is_group else ''}allreduce_async{'_' if lies_there else ''}"
    )

    def submit() -> int:
        handle: int = call(
            given if is_group else given[0],
            name=_named("allreduce", name),
            op=scaled.op,
            prescale_factor=scaled.factors[0],
            postscale_factor=scaled.factors[1],
            process_set=own,
        )
        return handle

    def finish(result: Any) -> Any:
        results = tuple(result) if is_group else (result,)
        scaled.outputs(results)
        if in_place:
            if not lies_there:
                for tensor, value in zip(tensors, results, strict=True):
                    tensor.data.copy_(value)
            results = tuple(tensors)
        return results if is_group else results[0]

    return _submit(submit, tensors[0], finish)


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """A handle of the reduction of all ranks' tensors. See mydist.allreduce_async."""
    op = handle_average_backwards_compatibility(op, average)
    factors = (prescale_factor, postscale_factor)
    return _start_allreduce([tensor], name, op, factors, process_set, False, False)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As allreduce_async, in place; synchronize() returns the tensor."""
    op = handle_average_backwards_compatibility(op, average)
    factors = (prescale_factor, postscale_factor)
    return _start_allreduce([tensor], name, op, factors, process_set, True, False)


def grouped_allreduce_async(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """A handle of the reductions of several tensors, all of them or none; gives a tuple."""
    op = handle_average_backwards_compatibility(op, average)
    factors = (prescale_factor, postscale_factor)
    return _start_allreduce(tensors, name, op, factors, process_set, False, True)


def grouped_allreduce_async_(
    tensors: Tensors,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As grouped_allreduce_async, in place."""
    op = handle_average_backwards_compatibility(op, average)
    factors = (prescale_factor, postscale_factor)
    return _start_allreduce(tensors, name, op, factors, process_set, True, True)


def sparse_allreduce_async(
    tensor: torch.Tensor, name: str | None, op: int, process_set: ProcessSet = global_process_set
) -> Callable[[], torch.Tensor]:
    """A function that waits, and returns all ranks' rows one after the other; not coalesced."""
    indices = tensor._indices().transpose(0, 1).contiguous()
    indices_handle = allgather_async(indices, f"{name}.indices", process_set)
    values_handle = allgather_async(tensor._values(), f"{name}.values", process_set)

    def handle() -> torch.Tensor:
        values = synchronize(values_handle)
        gathered = synchronize(indices_handle)
        if op == Average:
            values = values / process_set.size()
        return torch.sparse_coo_tensor(
            gathered.transpose(0, 1), values, tensor.size(), check_invariants=False
        )

    return handle


def allgather_async(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """A handle of all ranks' tensors, joined along the first dimension."""
    own = own_set(process_set)
    with refusal_noted("allgather", name, own):
        given = _checked(tensor)
    return _submit(
        lambda: moves.allgather_async(given, _named("allgather", name), own), tensor, _as_it_is
    )


def grouped_allgather_async(
    tensors: Tensors, name: str | None = None, process_set: ProcessSet = global_process_set
) -> int:
    """A handle of the allgathers of several tensors, all of them or none; gives a tuple."""
    own = own_set(process_set)
    with refusal_noted("grouped_allgather", name, own):
        given = [_checked(tensor) for tensor in tensors]
    return _submit(
        lambda: moves.grouped_allgather_async(given, _named("allgather", name), own),
        tensors[0],
        tuple,
    )


def _start_broadcast(
    call: Callable[..., int],
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None,
    process_set: ProcessSet,
    finish: Finish,
) -> int:
    own = own_set(process_set)
    with refusal_noted("broadcast", name, own):
        given = _checked(tensor)
    return _submit(lambda: call(given, root_rank, _named("broadcast", name), own), tensor, finish)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """A handle of the root's tensor."""
    return _start_broadcast(moves.broadcast_async, tensor, root_rank, name, process_set, _as_it_is)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """As broadcast_async, in place."""
    return _start_broadcast(
        moves.broadcast_async_, tensor, root_rank, name, process_set, lambda _: tensor
    )


def _even_splits(tensor: torch.Tensor, size: int) -> list[int]:
    rows, rest = divmod(len(tensor), size)
    if rest:
        raise ValueError(
            f"alltoall: the tensor has {len(tensor)} rows, which {size} ranks cannot share out "
            "evenly; give splits"
        )
    return [rows] * size


def _rows_of(tensor: torch.Tensor, splits: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """Those that `splits` give away: they may leave some at the end."""
    given = int(torch.as_tensor(splits).sum())
    return tensor[:given] if 0 <= given < len(tensor) else tensor


def alltoall_async(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> int:
    """A handle of (the rows from all ranks, how many came from each: on the CPU).

    Raises ValueError when there are no `splits` and the rows cannot be shared out evenly.
    """
    own = own_set(process_set)
    counts_dtype = splits.dtype if isinstance(splits, torch.Tensor) else torch.int32
    with refusal_noted("alltoall", name, own):
        given = _checked(tensor)
        if tensor.dim() == 0:
            raise ValueError("alltoall: the tensor is a scalar, which has no rows to share out")
        if splits is None:
            splits = _even_splits(tensor, own.size())
        given = _rows_of(given, splits)

    def finish(result: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        return result[0], result[1].to(device="cpu", dtype=counts_dtype)

    return _submit(
        lambda: moves.alltoall_async(given, splits, _named("alltoall", name), own), tensor, finish
    )


def _start_reducescatter(
    tensors: Tensors,
    name: str | None,
    op: int,
    process_set: ProcessSet,
    factors: tuple[float, float],
    is_group: bool,
) -> int:
    own = own_set(process_set)
    with _checks_of_reduction("reducescatter", is_group, name, own):
        scaled = _Scaled(tensors, op, *factors, own.size())
        given = scaled.inputs(tensors)
        if scaled.op == own_ops.Adasum:
            raise _WrongOpError("reducescatter: op Adasum works with allreduce only")
    call = reductions.grouped_reducescatter_async if is_group else reductions.reducescatter_async
    before, after = scaled.factors

    def submit() -> int:
        argument: Any = given if is_group else given[0]
        return call(argument, _named("reducescatter", name), scaled.op, before, after, own)

    def finish(result: Any) -> Any:
        results = tuple(result) if is_group else (result,)
        scaled.outputs(results)
        return results if is_group else results[0]

    return _submit(submit, tensors[0], finish)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """A handle of this rank's rows of the reduction."""
    factors = (prescale_factor, postscale_factor)
    return _start_reducescatter([tensor], name, op, process_set, factors, False)


def grouped_reducescatter_async(
    tensors: Tensors,
    name: str | None = None,
    op: int = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """A handle of this rank's rows of the reductions of several tensors; gives a tuple."""
    factors = (prescale_factor, postscale_factor)
    return _start_reducescatter(tensors, name, op, process_set, factors, True)


def _as_it_is(result: Any) -> Any:
    return result
