"""HookedPath: what gradient paths in Python have in common: hooks, passes and what is in flight."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch


def densify(parameter: torch.Tensor) -> None:
    """Replaces a sparse gradient by its dense form."""
    if parameter.grad is not None and parameter.grad.is_sparse:
        parameter.grad = parameter.grad.to_dense()


def own_version(gradient: torch.Tensor) -> int | None:
    """Its version, unless it is a view of a larger tensor; see HasMemoryOfItsOwn in C++."""
    shares = not gradient.is_sparse and gradient.untyped_storage().nbytes() > gradient.nbytes
    return None if shares else gradient._version


@dataclass(eq=False)
class Gradient:
    """That of one parameter, and how far it is in this step."""

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
    sparse_dims: int = 0  # Where ranks have agreed that it is sparse.

    @property
    def takes_part(self) -> bool:
        """Whether it is passed on in each step: frozen ones are if their group must be complete."""
        return self.parameter.requires_grad or bool(self.group)

    def take(self) -> None:
        """Holds the `.grad` that is there now."""
        grad = self.parameter.grad
        assert grad is not None
        self.reduced, self.version = grad, own_version(grad)
        if grad.is_cuda:
            self.written = torch.cuda.current_stream(grad.device).record_event()

    def replace(self, grad: torch.Tensor) -> None:
        """Makes it the `.grad`, and holds it."""
        self.parameter.grad = grad
        self.take()

    def order_behind(self) -> torch.Tensor:
        """The gradient, for use on the current stream: hooks may have run on another one."""
        assert self.reduced is not None
        if self.written is not None:
            stream = torch.cuda.current_stream(self.reduced.device)
            stream.wait_event(self.written)
            self.reduced.record_stream(stream)
        return self.reduced.detach()

    def expect_unchanged(self) -> torch.Tensor:
        """The gradient, to write the result into. Raises ValueError if it is another one now."""
        grad = self.parameter.grad
        if grad is not self.reduced or grad is None or own_version(grad) != self.version:
            raise ValueError(
                f"Gradient of '{self.name}' was changed or replaced between backward() and "
                "step(); call synchronize() first and step() inside skip_synchronize()"
            )
        return grad


class HookedPath(ABC):
    """Passes gradients on when backward has them, and waits for all in `synchronize`."""

    _in_flight: ClassVar[set[int]] = set()  # id() of the parameters, over all paths.
    _takes_sparse = False

    def __init__(self, passes: int, sparse_as_dense: bool) -> None:
        self._passes = passes
        self._sparse_as_dense = sparse_as_dense
        self._enabled = True
        self._touched = False
        self._gradients: list[Gradient] = []
        self._group_sizes: dict[str, int] = {}
        self._waiting: dict[str, list[Gradient]] = {}  # By group, until it is whole.

    @abstractmethod
    def _start(self, gradients: list[Gradient]) -> None:
        """Takes a gradient, or those of a group, all ready."""

    @abstractmethod
    def _finish(self) -> None:
        """Waits for all that was started and writes the results. After an error nothing flies."""

    def add_parameter(
        self, parameter: torch.Tensor, name: str, group: str, group_size: int
    ) -> None:
        gradient = Gradient(parameter, name, group)
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
            if not gradient.ready and gradient.takes_part:
                self._pass_on(gradient)
        try:
            self._finish()
        finally:
            self.reset()
            self._touched = False
            for gradient in self._gradients:
                self._land(gradient)

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

    def let_go(self) -> None:  # noqa: B027 - as a rule, nothing is only held
        """Forgets gradients that are only held; what is on its way is not."""

    def remove(self) -> None:
        for gradient in self._gradients:
            gradient.hook.remove()
            self._land(gradient)
        self._gradients.clear()

    def _land(self, gradient: Gradient) -> None:
        if gradient.ready:
            self._in_flight.discard(id(gradient.parameter))
        gradient.ready, gradient.reduced, gradient.written = False, None, None

    def _hook_for(self, gradient: Gradient) -> Callable[[torch.Tensor], None]:
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

    def _pass_on(self, gradient: Gradient) -> None:
        """Enqueues the gradient, or holds it until its group is whole."""
        parameter = gradient.parameter
        if id(parameter) in self._in_flight:
            raise ValueError(
                f"Gradient of '{gradient.name}' is already being reduced by another "
                "DistributedOptimizer that has the same parameter. Delete the one that is no "
                "longer used, or wrap one optimizer with all parameter groups."
            )
        if self._sparse_as_dense:
            densify(parameter)
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        if parameter.grad.is_sparse and not self._takes_sparse:
            raise ValueError(
                f"gradient of '{gradient.name}' is sparse, expected a dense one for a compressor "
                "written in Python; create the layer with sparse=False, use Compression.none, "
                ".fp16 or .bf16, or pass sparse_as_dense=True to DistributedOptimizer"
            )
        gradient.ready = True
        self._in_flight.add(id(parameter))
        gradient.take()
        if not gradient.group:
            self._start([gradient])
            return
        members = self._waiting.setdefault(gradient.group, [])
        members.append(gradient)
        if len(members) == self._group_sizes[gradient.group]:
            # Backward may finish in another order elsewhere; the order of registration is the same.
            self._start(sorted(self._waiting.pop(gradient.group), key=self._gradients.index))
