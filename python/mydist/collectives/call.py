"""Call: one collective as a user asks for it, and the table of collectives that it is made from.

A public function checks its arguments by making a Call of its own name, and picks the form: run()
waits for the outputs, start() gives a handle. What differs between the collectives is in the table.
form_of() makes the forms that take the same arguments.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch

from .. import _C
from ..job.names import note_refusal, resolve_name, submit
from ..job.process_set import ProcessSet
from ..reduce_op import Average
from .arguments import (
    Reduction,
    Scaling,
    check_int,
    check_process_set,
    check_splits,
    check_tensor,
    check_tensors,
    refuse_in_place_on_gradient,
    resolve_reduction,
    set_number,
)
from .compression import (
    Compression,
    CompressorLike,
    compress_all,
    decompress_all,
    split_compression,
)
from .differentiable import needs_gradient, record
from .handles import Finish, remember

Tensors = list[torch.Tensor]

_Parameters = ParamSpec("_Parameters")
_Answer = TypeVar("_Answer")  # A handle, or the outputs.
_Restore = Callable[[Tensors], Tensors]

_NOT_GIVEN: Any = object()


@dataclass
class Collective:
    """What differs between the collectives.

    Attributes:
        name: that of its functions in the binding, and the stem of automatic names.
        arguments: those of the binding for a call, its inputs and the outputs to write, if given.
        recorded: whether the outputs carry gradients.
        casts: whether the binding does built-in compressions; then `Call.cast` is their number.
    """

    name: str
    arguments: Callable[[Call, Sequence[torch.Tensor], Tensors | None], tuple[Any, ...]]
    recorded: bool = True
    casts: bool = False

    def __post_init__(self) -> None:
        self.enqueue = f"enqueue_{self.name}"  # Made once: a call takes microseconds.


COLLECTIVES = (
    Collective(
        "allreduce",
        lambda c, ins, outs: (ins, outs, c.names, c.group, *c.reduction, c.set_id, c.cast),
        casts=True,
    ),
    Collective("reducescatter", lambda c, ins, _: (ins, c.names, c.group, *c.reduction, c.set_id)),
    Collective("allgather", lambda c, ins, _: (ins, c.names, c.group, c.set_id)),
    Collective(
        "broadcast", lambda c, ins, outs: (ins[0], outs and outs[0], c.root, c.name, c.set_id)
    ),
    Collective("alltoall", lambda c, ins, _: (ins[0], c.splits, c.name, c.set_id)),
    Collective("scatter", lambda c, ins, _: (ins[0], c.splits, c.root, c.name, c.set_id)),
    Collective("gather", lambda c, ins, _: (ins[0], c.root, c.name, c.set_id), recorded=False),
    Collective(
        "reduce",
        lambda c, ins, _: (ins[0], None, c.root, c.name, *c.reduction, c.set_id),
        recorded=False,
    ),
)
_BY_NAME = {collective.name: collective for collective in COLLECTIVES}


class _Form(NamedTuple):
    collective: Collective
    stem: str  # Of automatic names.
    is_group: bool
    in_place: bool


# By the name of the public function.
_FORMS = {
    f"{prefix}{collective.name}{waits}{place}": _Form(
        collective, f"{prefix}{collective.name}", is_group=bool(prefix), in_place=bool(place)
    )
    for collective in COLLECTIVES
    for prefix in ("", "grouped_")
    for waits in ("", "_async")
    for place in ("", "_")
}


class Call:
    """The arguments of one call, checked; nothing is submitted yet."""

    collective: Collective
    in_place: bool
    reduction: Reduction = Reduction(Average, 1.0, 1.0)  # Of a collective that reduces.
    tensors: Tensors
    splits: list[int] | None = None
    root: int  # Of a collective that has one.
    process_set: ProcessSet
    set_id: int
    name: str  # Of the group, or of its only tensor.
    group: str = ""  # The same of a group.
    names: list[str]  # Of the tensors.
    cast: int = 0  # As what the binding sends float32; see core_number().
    shape: torch.Size  # Of a gather that is recorded: what ranks have that get nothing.

    def __init__(
        self,
        function: str,
        tensors: object,
        name: str | None,
        process_set: ProcessSet,
        scaling: Scaling | None = None,
        compression: CompressorLike = Compression.none,
        *,
        splits: object = None,
        root_rank: object = _NOT_GIVEN,
    ) -> None:
        """All but the name of the public function is the user's. Raises TypeError or ValueError."""
        self.collective, stem, is_group, self.in_place = _FORMS[function]
        try:
            self._check(function, stem, is_group, tensors, scaling, splits, root_rank)
            self.process_set, self.set_id = process_set, check_process_set(function, process_set)
        except Exception as error:
            note_refusal(error, stem, name, set_number(process_set))
            raise
        self.compression = compression
        self.name = resolve_name(stem, name, self.set_id)
        if not is_group:
            self.names = [self.name]
        else:
            self.group = self.name
            plain = str(self.name)  # An automatic name is a subclass, which is formatted slowly.
            self.names = [f"{plain}.{i}" for i in range(len(self.tensors))]

    def _check(
        self,
        function: str,
        stem: str,
        is_group: bool,
        tensors: object,
        scaling: Scaling | None,
        splits: object,
        root_rank: object,
    ) -> None:
        if scaling is not None:
            self.reduction = resolve_reduction(function, *scaling)
        self.tensors = (
            check_tensors(function, tensors) if is_group else [check_tensor(function, tensors)]
        )
        if splits is not None:
            self.splits = check_splits(function, splits)
        if root_rank is not _NOT_GIVEN:
            self.root = check_int(function, "root_rank", root_rank)
        if self.in_place:
            refuse_in_place_on_gradient(function, self.tensors, stem)

    def run(self) -> Tensors:
        """Waits for the outputs. Autograd records them if it has to, but not in place."""
        if self.collective.recorded and not self.in_place and needs_gradient(self.tensors):
            if self.compression is Compression.none:
                return submit(self.name, record, self, self.tensors)
            compressed, contexts = self._compress(self.compression)
            outputs = submit(self.name, record, self, compressed)
            return decompress_all(outputs, contexts, self.compression)
        outputs, restore = self._call_binding(getattr(_C, self.collective.name))
        return outputs if restore is None else restore(outputs)

    def plain(self, tensors: Sequence[torch.Tensor]) -> Tensors:
        """Waits for the outputs of the binding for these tensors; nothing is recorded."""
        function: Callable[..., Tensors] = getattr(_C, self.collective.name)
        return function(*self.collective.arguments(self, tensors, None))

    def again(self, collective: str, suffix: str, index: int | None = None, **more: Any) -> Call:
        """A call of a collective among the same ranks, with a suffix behind the names.

        With an index it is about that tensor only; `more` are other attributes that differ.
        """
        call = copy(self)
        call.collective, call.in_place, call.cast = _BY_NAME[collective], False, 0
        call.set_id = check_process_set(collective, self.process_set)
        names = self.names if index is None else [self.names[index]]
        call.names = [f"{name}.{suffix}" for name in names]
        call.group = f"{self.group}.{suffix}" if self.group and index is None else ""
        call.name = call.group or call.names[0]
        call.__dict__.update(more)
        return call

    def start(self, finish: Finish) -> int:
        """Submits the call. The handle gives what `finish` makes of the outputs."""
        handle, restore = self._call_binding(getattr(_C, self.collective.enqueue))
        if restore is None:
            return remember(handle, finish)
        return remember(handle, lambda outputs: finish(restore(outputs)))

    def _call_binding(self, function: Callable[..., _Answer]) -> tuple[_Answer, _Restore | None]:
        """The answer, and how the user's outputs come from those of the binding; None: as is."""
        collective, compression = self.collective, self.compression
        if collective.casts and compression is not Compression.none:
            compression, self.cast = split_compression(self.tensors, compression)
        outputs = self.tensors if self.in_place else None
        if compression is Compression.none:
            arguments = collective.arguments(self, self.tensors, outputs)
            return submit(self.name, function, *arguments), None
        with torch.no_grad():
            compressed, contexts = self._compress(compression)
            arguments = collective.arguments(self, compressed, None)
            answer = submit(self.name, function, *arguments)

        def restore(results: Tensors) -> Tensors:
            with torch.no_grad():
                restored = decompress_all(results, contexts, compression)
                if outputs is None:
                    return restored
                return [t.copy_(r) for t, r in zip(outputs, restored, strict=True)]

        return answer, restore

    def _compress(self, compression: CompressorLike) -> tuple[Tensors, list[Any]]:
        """What travels, and the contexts. A user's compressor may raise anything."""
        name = self.collective.name
        return submit(self.name, compress_all, name, self.tensors, compression)


# What some calls take besides tensors, a name, a process set, and how they reduce.
_OPTIONS = ("compression", "splits", "root_rank")


def form_of(
    blocking: Callable[_Parameters, object],
) -> Callable[[Callable[[Call], _Answer]], Callable[_Parameters, _Answer]]:
    """Makes a function with the parameters of `blocking` of what is done with its checked call.

    It is compiled from their names, as dataclasses compile their methods: so Python itself checks
    the arguments, and a call takes as long as one of a function that is written out.
    """
    taken = inspect.signature(blocking).parameters
    known: Any = blocking

    def make(finish: Callable[[Call], _Answer]) -> Callable[_Parameters, _Answer]:
        average = "average" if "average" in taken else None
        scaling = f"({average}, op, prescale_factor, postscale_factor)" if "op" in taken else None
        options = "".join(f", {name}={name}" for name in _OPTIONS if name in taken)
        defaults = {name: p.default for name, p in taken.items() if p.default is not p.empty}
        parameters = ", ".join(f"{p}=_defaults[{p!r}]" if p in defaults else p for p in taken)
        arguments = f"{next(iter(taken))}, name, process_set, {scaling}{options}"
        function = finish.__name__
        names = {**known.__globals__, "_finish": finish, "_defaults": defaults, "_Call": Call}
        body = f"return _finish(_Call({function!r}, {arguments}))"
        exec(f"def {function}({parameters}): {body}", names)
        form: Any = names[function]
        form.__module__, form.__doc__ = finish.__module__, finish.__doc__
        form.__annotations__ = {**known.__annotations__, **finish.__annotations__}
        del form.__annotations__["call"]
        return form  # type: ignore[no-any-return]

    return make
