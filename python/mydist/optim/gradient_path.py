"""The gradient path: what stands between a ready gradient and the engine.

It is the C++ reducer of the extension, as a rule. Two classes here have the methods that an
optimizer calls of it, which _C.pyi describes: one for compressors that the extension does not know,
and one that does nothing for a single rank. All calls come from the thread that runs the training.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from .. import _C
from ..collectives import allreduce_async, grouped_allreduce_async, synchronize
from ..collectives.compression import Compression, Compressor, core_number
from ..job.process_set import ProcessSet
from ..reduce_op import ReduceOp

# Those that mydist.explain() tells about.
live_reducers: weakref.WeakSet[_C.GradientReducer] = weakref.WeakSet()


@dataclass
class ReductionOptions:
    """How gradients are reduced; the same for all of an optimizer."""

    op: ReduceOp
    prescale_factor: float
    postscale_factor: float
    compression: type[Compressor] | Compressor
    backward_passes_per_step: int
    process_set: ProcessSet
    sparse_as_dense: bool = False
    gradient_as_buffer_view: bool = True


class SoloPath:
    """One rank: every gradient is its own reduction, so nothing is hooked or waited for."""

    def __init__(self, options: ReductionOptions) -> None:
        self._densified: list[torch.Tensor] | None = [] if options.sparse_as_dense else None

    def add_parameter(
        self, parameter: torch.Tensor, name: str, group: str, group_size: int
    ) -> None:
        if self._densified is not None:
            self._densified.append(parameter)

    def synchronize(self) -> None:
        for parameter in self._densified or ():
            densify(parameter)

    def pending(self) -> list[str]:
        """Nothing is ever pending."""
        return []

    def touched(self) -> bool:
        """A gradient of one rank is always reduced."""
        return self._densified is not None

    def set_backward_passes_per_step(self, passes: int) -> None: ...

    def set_enabled(self, enabled: bool) -> None: ...

    def reset(self) -> None: ...

    def remove(self) -> None: ...


def densify(parameter: torch.Tensor) -> None:
    """Replaces a sparse gradient by its dense form."""
    if parameter.grad is not None and parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()


def spread_overflow(gradients: Sequence[torch.Tensor], agree: Callable[[bool], bool]) -> bool:
    """Makes the gradients infinite when only those of another rank are not finite.

    Returns whether any rank has one that is not finite. `agree` says whether its argument is True
    on all ranks.
    """
    values = [gradient._values() if gradient.is_sparse else gradient for gradient in gradients]
    is_finite = all(bool(torch.isfinite(value).all()) for value in values)
    has_overflow = not agree(is_finite)
    if has_overflow and is_finite:
        for value in values:
            value.fill_(float("inf"))
    return has_overflow


def _own_version(gradient: torch.Tensor) -> int | None:
    """Its version, unless it is a view of a larger tensor; see HasMemoryOfItsOwn in C++."""
    shares = gradient.untyped_storage().nbytes() > gradient.nbytes
    return None if shares else gradient._version


@dataclass(eq=False)
class _Gradient:
    parameter: torch.Tensor
    name: str
    group: str
    passes: int = 0
    ready: bool = False  # Passed on in this step, perhaps waiting for its group.
    reduced: torch.Tensor | None = None  # The `.grad` that was passed on, and its version then.
    version: int | None = None  # None: it shares its version with others, so that says nothing.
    context: Any = None
    hook: Any = None
    written: torch.cuda.Event | None = None  # Behind it, on a GPU, `reduced` is there.


@dataclass(eq=False)
class _Flight:
    handle: int
    gradients: list[_Gradient] = field(default_factory=list)


class CompressorPath:
    """In Python, for a user's own compressor."""

    _in_flight: ClassVar[set[int]] = set()  # id() of the parameters, over all paths.

    def __init__(self, options: ReductionOptions) -> None:
        self._options = options
        self._passes = options.backward_passes_per_step
        self._enabled = True
        self._touched = False
        self._gradients: list[_Gradient] = []
        self._group_sizes: dict[str, int] = {}
        self._waiting: dict[str, list[_Gradient]] = {}  # By group, until it is whole.
        self._flights: list[_Flight] = []

    def add_parameter(
        self, parameter: torch.Tensor, name: str, group: str, group_size: int
    ) -> None:
        gradient = _Gradient(parameter, name, group)
        frozen = not parameter.requires_grad  # torch hooks only what is not, but it may change.
        parameter.requires_grad_(True)
        register: Any = parameter.register_post_accumulate_grad_hook
        gradient.hook = register(self._hook_for(gradient))
        parameter.requires_grad_(not frozen)
        self._gradients.append(gradient)
        if group:
            self._group_sizes[group] = group_size

    def synchronize(self) -> None:
        for gradient in self._gradients:
            # A group must be complete, so its frozen members take part with zeros.
            if not gradient.ready and (gradient.parameter.requires_grad or gradient.group):
                self._pass_on(gradient)
        flights, self._flights = self._flights, []
        first_error: Exception | None = None
        for flight in flights:
            try:
                outputs = synchronize(flight.handle)
                results = outputs if isinstance(outputs, list) else [outputs]
                for gradient, result in zip(flight.gradients, results, strict=True):
                    self._write_back(gradient, result)
            except Exception as error:  # every handle has to be consumed before one is raised
                first_error = first_error or error
        self.reset()
        self._touched = False
        for gradient in self._gradients:
            self._land(gradient)
        if first_error is not None:
            raise first_error

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._passes = passes

    def set_enabled(self, enabled: bool) -> None:
        self._enabled = enabled

    def pending(self) -> list[str]:
        return [gradient.name for gradient in self._gradients if gradient.ready]

    def reset(self) -> None:
        for gradient in self._gradients:
            gradient.passes = 0

    def touched(self) -> bool:
        return self._touched

    def remove(self) -> None:
        for gradient in self._gradients:
            gradient.hook.remove()
            self._land(gradient)
        self._gradients.clear()

    def _land(self, gradient: _Gradient) -> None:
        if gradient.ready:
            self._in_flight.discard(id(gradient.parameter))
        gradient.ready, gradient.reduced, gradient.written = False, None, None

    def _hook_for(self, gradient: _Gradient) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            self._touched = True
            if gradient.ready:
                raise ValueError(
                    f"Gradient of '{gradient.name}' was computed more than "
                    f"backward_passes_per_step ({self._passes}) times since the last step; call "
                    "step() in between, or raise it with set_backward_passes_per_step()"
                )
            if self._enabled:
                gradient.passes += 1
                if gradient.passes >= self._passes:
                    self._pass_on(gradient)

        return hook

    def _pass_on(self, gradient: _Gradient) -> None:
        """Enqueues the gradient, or holds it until its group is whole."""
        parameter = gradient.parameter
        if id(parameter) in self._in_flight:
            raise ValueError(
                f"Gradient of '{gradient.name}' is already being reduced by another "
                "DistributedOptimizer that has the same parameter. Delete the one that is no "
                "longer used, or wrap one optimizer with all parameter groups."
            )
        if self._options.sparse_as_dense:
            densify(parameter)
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.is_sparse:
            raise ValueError(
                f"gradient of '{gradient.name}' is sparse, expected a dense one for a compressor "
                "written in Python; create the layer with sparse=False, use Compression.none, "
                ".fp16 or .bf16, or pass sparse_as_dense=True to DistributedOptimizer"
            )
        gradient.ready = True
        self._in_flight.add(id(parameter))
        gradient.reduced, gradient.version = parameter.grad, _own_version(parameter.grad)
        if parameter.grad.is_cuda:
            gradient.written = torch.cuda.current_stream(parameter.device).record_event()
        if not gradient.group:
            self._enqueue([gradient])
            return
        members = self._waiting.setdefault(gradient.group, [])
        members.append(gradient)
        if len(members) == self._group_sizes[gradient.group]:
            # Backward may finish in another order elsewhere; the order of registration is the same.
            self._enqueue(sorted(self._waiting.pop(gradient.group), key=self._gradients.index))

    def _enqueue(self, gradients: list[_Gradient]) -> None:
        compressed = []
        for gradient in gradients:
            assert gradient.reduced is not None
            if gradient.written is not None:
                # The hooks of a group may have run on other streams than the last of them.
                stream = torch.cuda.current_stream(gradient.reduced.device)
                stream.wait_event(gradient.written)
                gradient.reduced.record_stream(stream)
            tensor, gradient.context = self._options.compression.compress(gradient.reduced.detach())
            compressed.append(tensor)
        options: dict[str, Any] = {
            "op": self._options.op,
            "prescale_factor": self._options.prescale_factor,
            "postscale_factor": self._options.postscale_factor,
            "process_set": self._options.process_set,
        }
        if gradients[0].group:
            handle = grouped_allreduce_async(compressed, name=gradients[0].group, **options)
        else:
            handle = allreduce_async(compressed[0], name=gradients[0].name, **options)
        self._flights.append(_Flight(handle, gradients))

    def _write_back(self, gradient: _Gradient, result: torch.Tensor) -> None:
        grad = gradient.parameter.grad
        if grad is not gradient.reduced or grad is None or _own_version(grad) != gradient.version:
            raise ValueError(
                f"Gradient of '{gradient.name}' was changed or replaced between backward() and "
                "step(); call synchronize() first and step() inside skip_synchronize()"
            )
        with torch.no_grad():
            grad.copy_(self._options.compression.decompress(result, gradient.context))


GradientPath = _C.GradientReducer | CompressorPath | SoloPath


def make_gradient_path(
    options: ReductionOptions, parameters: Sequence[torch.Tensor]
) -> GradientPath:
    """The path for this process set and compression. ValueError before mydist.init()."""
    if options.process_set.size() == 1:
        return SoloPath(options)
    native = core_number(options.compression)
    if native is None:
        return CompressorPath(options)
    reducer = _C.GradientReducer(
        int(options.op),
        options.prescale_factor,
        options.postscale_factor,
        native,
        options.backward_passes_per_step,
        options.process_set.process_set_id,
    )
    reducer.set_sparse_as_dense(options.sparse_as_dense)
    reducer.set_buffer_views(options.gradient_as_buffer_view)
    live_reducers.add(reducer)
    if options.gradient_as_buffer_view:
        _foresee_memory(options, parameters)
    return reducer


def _foresee_memory(options: ReductionOptions, parameters: Sequence[torch.Tensor]) -> None:
    """Warns if the gradients have no room in the memory that the ranks of this host share.

    That memory is reserved in the first step, when it is known which gradients are sparse and so
    need none of it; a warning is wanted before. Here all are taken for dense.
    """
    needed = sum(
        parameter.numel() * _wire_bytes(parameter.dtype, options.compression)
        for parameter in parameters
        if parameter.requires_grad and parameter.device.type == "cpu"
    )
    _C.foresee_shared(needed)


def _wire_bytes(dtype: torch.dtype, compression: type[Compressor] | Compressor) -> int:
    """Of one element of a gradient as it travels."""
    is_compressed = compression is not Compression.none and dtype in (torch.float32, torch.float64)
    return 2 if is_compressed else dtype.itemsize
