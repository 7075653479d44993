"""The gradient path: what stands between a ready gradient and the engine.

It is the C++ reducer of the extension, as a rule. Others have the methods that an optimizer calls
of it, which _C.pyi describes: one for compressors that the extension does not know, one for codecs,
and one that does nothing for a single rank. All calls come from the thread that runs the training.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from .. import _C
from ..codecs.codec import Codec
from ..collectives import allreduce_async, grouped_allreduce_async, synchronize
from ..collectives.compression import Compression, Compressor, core_number
from ..job.process_set import ProcessSet
from ..reduce_op import Average, ReduceOp
from .encoding import automatic, choice
from .encoding.auto_path import AutoPath
from .encoding.path import CodecPath, CodecSettings
from .encoding.places import Places
from .encoding.residuals import Units
from .hooked_path import Gradient, HookedPath, densify
from .onebit_adam import OneBitAdam

# Those that mydist.explain() tells about.
live_reducers: weakref.WeakSet[_C.GradientReducer] = weakref.WeakSet()


@dataclass
class ReductionOptions:
    """How gradients are reduced; the same for all of an optimizer."""

    op: ReduceOp
    prescale_factor: float
    postscale_factor: float
    compression: Any  # A Compressor, a Codec, or a mapping of them by pattern.
    backward_passes_per_step: int
    process_set: ProcessSet
    sparse_as_dense: bool = False
    gradient_as_buffer_view: bool = True
    # Learning rate and loss scale of a parameter.
    units_of: Callable[[torch.Tensor], Units] = lambda _: (None, None)
    momentum_of: Callable[[], OneBitAdam | None] = lambda: None  # See CodecSettings.

    def of_collectives(self) -> dict[str, Any]:
        """As arguments of allreduce."""
        return {
            "op": self.op,
            "prescale_factor": self.prescale_factor,
            "postscale_factor": self.postscale_factor,
            "process_set": self.process_set,
        }


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

    def let_go(self) -> None: ...

    def remove(self) -> None: ...


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


@dataclass(eq=False)
class _Flight:
    handle: int
    gradients: list[Gradient] = field(default_factory=list)


class CompressorPath(HookedPath):
    """For a user's own compressor."""

    def __init__(self, options: ReductionOptions) -> None:
        super().__init__(options.backward_passes_per_step, options.sparse_as_dense)
        self._options = options
        self._flights: list[_Flight] = []

    def _start(self, gradients: list[Gradient]) -> None:
        compression = self._options.compression
        compressed = []
        for gradient in gradients:
            tensor, gradient.context = compression.compress(gradient.order_behind())
            compressed.append(tensor)
        options = self._options.of_collectives()
        if gradients[0].group:
            handle = grouped_allreduce_async(compressed, name=gradients[0].group, **options)
        else:
            handle = allreduce_async(compressed[0], name=gradients[0].name, **options)
        self._flights.append(_Flight(handle, gradients))

    def _finish(self) -> None:
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
        if first_error is not None:
            raise first_error

    def _write_back(self, gradient: Gradient, result: torch.Tensor) -> None:
        grad = gradient.expect_unchanged()
        with torch.no_grad():
            grad.copy_(self._options.compression.decompress(result, gradient.context))


GradientPath = _C.GradientReducer | AutoPath | CodecPath | CompressorPath | SoloPath

# Codecs that are given and not used, which mydist.explain() tells about, by path.
unused_codecs: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def make_gradient_path(
    options: ReductionOptions, parameters: Sequence[torch.Tensor]
) -> GradientPath:
    """The path for this process set and compression. ValueError before mydist.init()."""
    choices = choice.by_pattern(options.compression)
    if options.process_set.size() == 1 and not choice.has_momentum(choices):
        return SoloPath(options)
    places = choice.places_of(options.process_set)
    if choice.is_encoded(choices, places):
        if automatic.is_automatic(choices):
            return _auto_path(options, choices, parameters)
        return _codec_path(options, choices, places)
    used = set(choice.without_codecs(choices).values())
    if len(used) > 1:  # Compressors for parts of the model.
        return _codec_path(options, choices, places)
    (compression,) = used
    path = _path_without_codecs(replace(options, compression=compression), parameters)
    if codecs := choice.text(choices):
        unused_codecs[path] = codecs
    return path


def _auto_path(
    options: ReductionOptions, choices: choice.ByPattern, parameters: Sequence[torch.Tensor]
) -> AutoPath:
    def make() -> GradientPath:
        compression = automatic.settled(choices, options.process_set)
        return make_gradient_path(replace(options, compression=compression), parameters)

    keeps_state = any(isinstance(one, Codec) and one.has_state for one in choices.values())
    return AutoPath(make, keeps_state)


def _codec_path(options: ReductionOptions, choices: choice.ByPattern, places: Places) -> CodecPath:
    scale = options.prescale_factor * options.postscale_factor
    settings = CodecSettings(
        choices,
        places,
        options.of_collectives(),
        scale / places.size if options.op == Average else scale,
        options.units_of,
        options.momentum_of,
    )
    return CodecPath(settings, options.backward_passes_per_step, options.sparse_as_dense)


def _path_without_codecs(
    options: ReductionOptions, parameters: Sequence[torch.Tensor]
) -> _C.GradientReducer | CompressorPath:
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
