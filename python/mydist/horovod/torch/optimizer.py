"""`horovod.torch.optimizer`: DistributedOptimizer as Horovod's programs know it.

A wrapped optimizer is an instance of a new class below that of the optimizer, and has the fields
that programs read, such as `_parameter_names`. mydist.DistributedOptimizer is faster and finds more
mistakes.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ..common.process_sets import ProcessSet, global_process_set
from ..common.util import split_list
from .asynchronous import (
    Adasum,
    Average,
    allreduce_async_,
    grouped_allreduce_async_,
    sparse_allreduce_async,
    synchronize,
)
from .compression import Compression
from .functions import broadcast_object
from .mpi_ops import size

__all__ = ["DistributedOptimizer"]

_TOO_MANY_BACKWARDS = (
    "Gradients were computed more than backward_passes_per_step times before call to step(). "
    "Increase backward_passes_per_step to accumulate gradients locally."
)
_ZERO_GRAD_TOO_EARLY = (
    "optimizer.zero_grad() was called after loss.backward() but before optimizer.step() or "
    "optimizer.synchronize(). This is prohibited as it can cause a race condition."
)
_NOT_SKIPPED = (
    "optimizer.step() called without optimizer.skip_synchronize() context after "
    "optimizer.synchronize(). This can cause training slowdown. You may want to consider using "
    "optimizer.skip_synchronize() context if you use optimizer.synchronize() in your code."
)


def _checked_names(
    optimizer: torch.optim.Optimizer, named_parameters: Iterable[Any] | None
) -> list[tuple[str, torch.Tensor]]:
    """The parameters with their names. ValueError for names that are no pairs, or not unique."""
    if named_parameters is None:
        return [
            (f"allreduce.noname.{index}.{position}", parameter)
            for index, group in enumerate(optimizer.param_groups)
            for position, parameter in enumerate(group["params"])
        ]
    named = list(named_parameters)
    if any(not isinstance(item, tuple) for item in named):
        raise ValueError(
            "named_parameters should be a sequence of tuples (name, parameter), usually produced "
            "by model.named_parameters()."
        )
    twice = find_duplicates([name for name, _ in named])
    if twice:
        raise ValueError(
            "Parameter names in named_parameters must be unique. Found duplicates: "
            + ", ".join(twice)
        )
    known = {id(parameter) for _, parameter in named}
    unnamed = {id(p) for group in optimizer.param_groups for p in group["params"]} - known
    if unnamed:
        raise ValueError(
            "named_parameters was specified, but one or more model parameters were not named. "
            "Python object ids: " + ", ".join(map(str, unnamed))
        )
    return named


def find_duplicates(lst: Iterable[str]) -> set[str]:
    """What is there more than once."""
    return {item for item, count in Counter(lst).items() if count > 1}


def _checked_groups(groups: Any) -> Any:
    if groups is None:
        return None
    if not isinstance(groups, list):
        if groups <= 0:
            raise ValueError(
                "groups should be a non-negative integer or a list of list of torch.Tensor."
            )
        return groups
    members = [parameter for group in groups for parameter in group]
    if any(not isinstance(parameter, torch.Tensor) for parameter in members):
        raise ValueError("groups must consist of torch.Tensor.")
    if len({id(parameter) for parameter in members}) != len(members):
        raise ValueError("A parameter can only appear once in groups.")
    return groups


def _base(self: Any) -> Any:
    """The optimizer with the methods of its own class."""
    return super(self.__class__, self)


def _begin(self: Any, named: list[tuple[str, torch.Tensor]], passes: int) -> None:
    """The fields that both kinds of optimizer have."""
    self._parameter_names = {parameter: name for name, parameter in named}
    self._handles = {}
    self._grad_accs = []  # The handles of the hooks.
    self._requires_update = set()
    self._synchronized = False
    self._should_synchronize = True
    self.backward_passes_per_step = passes
    self._allreduce_delay = {parameter: passes for _, parameter in named}


def _watch(self: Any, parameter: torch.Tensor) -> None:
    """Calls `_on_gradient` when a gradient has been accumulated, as long as the optimizer lives."""
    reference = weakref.ref(self)

    def hook(*ignore: Any) -> None:
        if (optimizer := reference()) is not None:
            optimizer._on_gradient(parameter)

    self._requires_update.add(parameter)
    self._grad_accs.append(parameter.register_post_accumulate_grad_hook(hook))  # type: ignore[no-untyped-call]


def _count(self: Any, parameter: torch.Tensor) -> bool:
    """Whether this backward pass is the last one before the gradient is reduced."""
    handle, _ = self._handles.get(parameter, (None, None))
    if handle is not None and self._allreduce_delay[parameter] <= 0:
        raise AssertionError(_TOO_MANY_BACKWARDS)
    assert parameter.grad is not None
    assert not parameter.grad.requires_grad
    assert self._allreduce_delay[parameter] > 0
    self._allreduce_delay[parameter] -= 1
    return bool(self._allreduce_delay[parameter] == 0)


class _Shared:
    """What both kinds of optimizer do alike. Its functions become those of new classes."""

    def set_backward_passes_per_step(self: Any, passes: int) -> None:
        """How many backward passes are accumulated before gradients are reduced."""
        self.backward_passes_per_step = passes
        for parameter in self._allreduce_delay:
            self._allreduce_delay[parameter] = passes

    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> None:
        """Resets the gradients. AssertionError while gradients are being reduced."""
        if self._handles:
            raise AssertionError(_ZERO_GRAD_TOO_EARLY)
        _base(self).zero_grad(*args, **kwargs)

    def local_step(self: Any) -> None:
        """A step of the optimizer's own class: it waits for no other rank."""
        _base(self).step()


class _DistributedOptimizer:
    """Reduces gradients while backward runs, and waits for them in step()."""

    def __init__(
        self: Any,
        params: Any,
        named_parameters: Iterable[Any] | None,
        compression: Any,
        backward_passes_per_step: int = 1,
        op: int = Average,
        gradient_predivide_factor: float = 1.0,
        groups: Any = None,
        sparse_as_dense: bool = False,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        _base(self).__init__(params)
        _begin(self, _checked_names(self, named_parameters), backward_passes_per_step)
        self._compression = compression
        self.op = op
        self.gradient_predivide_factor = gradient_predivide_factor
        self.sparse_as_dense = sparse_as_dense
        self.process_set = process_set
        self._groups = _checked_groups(groups)
        self._p_to_group: dict[Any, tuple[Any, ...]] = {}
        self._group_counts: dict[tuple[Any, ...], int] = {}
        if process_set.included() and (size() > 1 or os.environ.get("HOROVOD_ELASTIC") == "1"):
            self._register_hooks()

    find_duplicates = staticmethod(find_duplicates)

    def load_state_dict(self: Any, *args: Any, **kwargs: Any) -> None:
        """As of every torch optimizer; what is being reduced is forgotten."""
        self._handles: dict[Any, tuple[Any, Any]] = {}
        self._synchronized, self._should_synchronize = False, True
        self.set_backward_passes_per_step(self.backward_passes_per_step)
        _base(self).load_state_dict(*args, **kwargs)

    def _register_hooks(self: Any) -> None:
        trained = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        if self._groups is not None:
            for group in self._make_groups(trained):
                self._group_counts[group] = 0
                self._p_to_group.update(dict.fromkeys(group, group))
        for parameter in trained:
            _watch(self, parameter)

    def _make_groups(self: Any, trained: list[Any]) -> list[tuple[Any, ...]]:
        """In the order of the first rank's parameters, so that they are equal on all ranks."""
        names = [self._parameter_names.get(parameter) for parameter in trained]
        names = broadcast_object(names, self.process_set.ranks[0], None, self.process_set)
        ordered = sorted(trained, key=lambda p: names.index(self._parameter_names.get(p)))
        if not isinstance(self._groups, list):
            return [tuple(group) for group in split_list(ordered, self._groups) if group]
        known = set(map(id, ordered))
        groups = [tuple(p for p in group if id(p) in known) for group in self._groups]
        grouped = {id(parameter) for group in groups for parameter in group}
        return [*filter(None, groups), *((p,) for p in ordered if id(p) not in grouped)]

    def _on_gradient(self: Any, parameter: torch.Tensor) -> None:
        if not _count(self, parameter):
            self._handles[parameter] = (None, None)
        elif self._groups is None:
            self._handles[parameter] = self._allreduce_grad_async(parameter)
        else:
            group = self._p_to_group[parameter]
            self._group_counts[group] += 1
            self._handles[parameter] = (None, None)
            if self._group_counts[group] == len(group):
                self._group_counts[group] = 0
                for member in group:
                    self._handles.pop(member, None)
                self._handles[group] = self._grouped_allreduce_grad_async(group)

    def _allreduce_grad_async(self: Any, p: Any) -> tuple[Any, Any]:
        """A handle, and what decompresses its result. Without a gradient it is zeros."""
        if p.grad is None:
            p.grad = torch.zeros_like(p).detach()
        name, gradient = self._parameter_names.get(p), p.grad
        if gradient.is_sparse and not self.sparse_as_dense:
            return sparse_allreduce_async(gradient, name, self.op, self.process_set), None
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        wire, context = self._compression.compress(dense)
        divisor = self.gradient_predivide_factor if self.op == Average else 1.0
        handle = allreduce_async_(
            wire,
            name=name,
            op=self.op,
            prescale_factor=1.0 / divisor,
            postscale_factor=divisor,
            process_set=self.process_set,
        )
        return handle, context

    def _grouped_allreduce_grad_async(self: Any, ps: tuple[Any, ...]) -> tuple[Any, Any]:
        name = self._parameter_names.get(ps[0])
        pairs = [self._compression.compress(p.grad) for p in ps]
        wires, contexts = zip(*pairs, strict=True)
        handle = grouped_allreduce_async_(
            wires, name=name, op=self.op, process_set=self.process_set
        )
        return handle, contexts

    def synchronize(self: Any) -> None:
        """Reduces what is not reduced yet, waits, and leaves the results in `.grad`."""
        if self.process_set.included():
            self._reduce_missing()
            for key, (handle, context) in self._handles.items():
                result = handle() if callable(handle) else synchronize(handle)
                if isinstance(key, tuple):
                    for parts in zip(key, result, context, strict=True):
                        self._take(*parts)
                else:
                    self._take(key, result, context)
            for group in self._group_counts:
                self._group_counts[group] = 0
            self._handles.clear()
        self._synchronized = True

    def _reduce_missing(self: Any) -> None:
        begun: set[Any] = set()
        for key, (handle, _) in self._handles.items():
            if handle is not None:
                begun.update(key if isinstance(key, tuple) else (key,))
        # The same order on all ranks is not needed: names tell gradients apart.
        for parameter in self._requires_update - begun:
            self._handles[parameter] = self._allreduce_grad_async(parameter)

    def _take(self: Any, p: Any, result: torch.Tensor, context: Any) -> None:
        self._allreduce_delay[p] = self.backward_passes_per_step
        reduced = self._compression.decompress(result, context)
        if not p.grad.is_sparse:
            p.grad.set_(reduced)
        else:
            p.grad.zero_().add_(reduced if reduced.is_sparse else reduced.to_sparse())

    @contextmanager
    def skip_synchronize(self: Any) -> Iterator[None]:
        """Within this context step() does not synchronize."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        """Waits for the reduced gradients and updates the parameters."""
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(_NOT_SKIPPED, stacklevel=2)
            self.synchronize()
        self._synchronized = False
        return _base(self).step(closure)

    # The base class would otherwise wrap this step a second time and run step hooks twice.
    step.hooked = True  # type: ignore[attr-defined]


class _DistributedAdasumOptimizer:
    """Every rank takes its own step, and the changes of the parameters are combined by Adasum."""

    def __init__(
        self: Any,
        params: Any,
        named_parameters: Iterable[Any] | None,
        compression: Any,
        backward_passes_per_step: int = 1,
    ) -> None:
        _base(self).__init__(params)
        named = _checked_names(self, named_parameters)
        _begin(self, named, backward_passes_per_step)
        self._compression = compression
        self._starting_models = {p: torch.zeros_like(p).detach() for _, p in named}
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter).detach()
                    _watch(self, parameter)

    def _on_gradient(self: Any, parameter: torch.Tensor) -> None:
        is_due = _count(self, parameter)
        self._handles[parameter] = self._allreduce_grad_async(parameter) if is_due else (None, None)

    def _allreduce_grad_async(self: Any, p: Any) -> tuple[Any, Any]:
        """Takes the step of one parameter; its change is combined in place of it."""
        start = self._starting_models[p]
        start.copy_(p.detach())
        kept = [group["params"] for group in self.param_groups]
        for group in self.param_groups:
            group["params"] = [member for member in group["params"] if member is p]
        try:
            self.local_step()
        finally:
            for group, members in zip(self.param_groups, kept, strict=True):
                group["params"] = members
        p.data.sub_(start)
        wire, context = self._compression.compress(p)
        return allreduce_async_(wire.data, name=self._parameter_names.get(p), op=Adasum), context

    def synchronize(self: Any) -> None:
        """Nothing: step() waits."""

    def skip_synchronize(self: Any) -> Any:
        """Raises AssertionError."""
        raise AssertionError(
            "Skipping synchronization is not supported when using Adasum optimizer."
        )

    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        """Waits for the combined changes and adds them to the parameters."""
        loss = None if closure is None else closure()
        begun = {p for p, (handle, _) in self._handles.items() if handle is not None}
        for parameter in self._requires_update - begun:
            self._handles[parameter] = self._allreduce_grad_async(parameter)
        for p, (handle, context) in self._handles.items():
            change = self._compression.decompress(synchronize(handle), context)
            p.data.copy_(self._starting_models[p].add_(change.data))
            self._allreduce_delay[p] = self.backward_passes_per_step
        self._handles.clear()
        return loss

    step.hooked = True  # type: ignore[attr-defined]


def DistributedOptimizer(  # noqa: N802 - Horovod's name
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[Any] | None = None,
    compression: Any = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: Any = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """A new optimizer of the class of `optimizer`, without its state, that reduces gradients.

    Ranks outside `process_set` may make one: it steps on its own.

    Args:
        optimizer: gives the class and the parameter groups.
        named_parameters: `model.named_parameters()`; default: names by position.
        compression: how gradients travel.
        backward_passes_per_step: backward passes whose gradients are summed before they travel.
        op: Average, Sum or Adasum. With Adasum, and more than one rank, every rank takes its own
            step and the changes are combined.
        gradient_predivide_factor: with Average, divide by this before the sum.
        num_groups: older name of `groups`.
        groups: gradients that are reduced together: a number of groups, or lists of parameters.
        sparse_as_dense: sparse gradients travel dense.
        process_set: the ranks whose gradients are reduced.

    Raises:
        ValueError: an argument is wrong.
        NotImplementedError: Adasum on another set than the global one.
    """
    if gradient_predivide_factor != 1.0 and op != Average:
        raise ValueError("gradient_predivide_factor not supported with op != Average")
    if num_groups != 0:
        warnings.warn(
            "Parameter `num_groups` has been replaced by `groups` and will be removed in v0.23.0.",
            DeprecationWarning,
            stacklevel=2,
        )
        groups = num_groups if groups is None else groups
    if backward_passes_per_step <= 0:
        raise ValueError("backward_passes_per_step must be > 0")
    more: tuple[Any, ...] = ()
    methods: type = _DistributedAdasumOptimizer
    if op != Adasum or size() == 1:
        methods = _DistributedOptimizer
        more = (op, gradient_predivide_factor, groups, sparse_as_dense, process_set)
    elif process_set is not global_process_set:
        raise NotImplementedError("Adasum does not support non-global process sets yet.")
    base = optimizer.__class__
    # Methods of the new class itself: a program may call those of the base by
    # super(optimizer.__class__, optimizer).
    body = {**_Shared.__dict__, **methods.__dict__, "__module__": __name__}
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    wrapped = type(base.__name__, (base,), body)
    return wrapped(
        optimizer.param_groups, named_parameters, compression, backward_passes_per_step, *more
    )
