"""DistributedOptimizer: reduces gradients over all ranks while backward is still running.

A hook on every parameter enqueues its gradient as soon as it is ready; `step()` waits for the
reduced gradients (`synchronize`) and then runs the wrapped optimizer. The call pattern follows
horovod.torch.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import torch

from ._gradient_names import GradientNames, parameter_groups
from ._gradient_path import GradientPath, ReductionOptions, make_gradient_path
from .compression import Compression, Compressor
from .process_set import ProcessSet, global_process_set
from .reduce_op import Average, ReduceOp

__all__ = ["DistributedOptimizer"]


@dataclass
class _Distribution:
    """What a wrapped optimizer knows beyond the original; kept in one attribute of it."""

    path: GradientPath
    names: GradientNames
    synchronized: bool = False  # The gradients are reduced and step() has not followed yet.
    explicit: bool = False  # … by a call of synchronize(), so step() wants skip_synchronize().
    skip: bool = False  # Inside skip_synchronize().
    accumulating: bool = False  # Inside no_sync().
    warned: bool = False
    registered: set[int] = field(default_factory=set)  # id() of parameters with a hook.

    def register(
        self, optimizer: torch.optim.Optimizer, groups: Sequence[Sequence[torch.Tensor]] = ()
    ) -> None:
        """Puts hooks on all parameters that have none yet, frozen ones included."""
        group_of = {id(p): index for index, group in enumerate(groups) for p in group}
        for parameter, name in self.names.of(optimizer):
            if id(parameter) in self.registered:
                continue
            index = group_of.get(id(parameter))
            if index is None:
                self.path.add_parameter(parameter, name, "", 1)
            else:
                group = f"gradient_group.{index}"
                self.path.add_parameter(parameter, name, group, len(groups[index]))
            self.registered.add(id(parameter))


class _DistributedOptimizer(torch.optim.Optimizer):
    """The methods that are put in front of the wrapped optimizer's class; never instantiated."""

    _distribution: _Distribution

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Waits for the reduced gradients and updates the parameters.

        Args:
            closure: recomputes the loss, as torch optimizers take it. The gradients are
                synchronized right after the closure returns, so it runs zero_grad, forward and
                backward; every rank must pass one. The value returned is this rank's own loss.

        Raises:
            ValueError: a gradient was changed or replaced between backward and step.
            MydistError: the reduction failed; the parameters are unchanged.
        """
        distribution = self._distribution
        if distribution.skip:
            synchronized_closure = closure
        elif closure is not None:
            synchronized_closure = self._synchronizing(closure)
        else:
            synchronized_closure = None
            if distribution.synchronized and distribution.explicit:
                self._warn_once()
            self._synchronize_if_needed()
        arguments = () if closure is None else (synchronized_closure,)
        result = super().step(*arguments, **kwargs)
        distribution.synchronized = False
        return result

    # The base class would otherwise wrap this step a second time and run step hooks twice.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Reduces what is not reduced yet, waits, and leaves the results in `.grad`. Blocking.

        Parameters without a gradient on this rank take part with zeros, so ranks may use
        different parameters. Call it to look at or change gradients before `step()`, which must
        then run inside `skip_synchronize()`.

        Raises: as `step`.
        """
        self._synchronize()
        self._distribution.explicit = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context `step()` does not synchronize.

        Raises:
            ValueError: gradients are being reduced and `synchronize()` has not been called.
        """
        pending = self._distribution.path.pending()
        if pending:
            raise ValueError(
                f"skip_synchronize() was entered while the gradient of '{pending[0]}' is being "
                "reduced; call synchronize() first"
            )
        previous = self._distribution.skip
        self._distribution.skip = True
        try:
            yield
        finally:
            self._distribution.skip = previous

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes within this context only accumulate; the next one outside reduces all."""
        distribution = self._distribution
        previous = distribution.accumulating
        distribution.accumulating = True
        distribution.path.set_enabled(False)
        try:
            yield
        finally:
            distribution.accumulating = previous
            distribution.path.set_enabled(not previous)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients.

        Raises:
            ValueError: gradients are being reduced, that is between backward and step().
        """
        distribution = self._distribution
        pending = distribution.path.pending()
        if pending:
            raise ValueError(
                f"zero_grad() was called after backward() and before step(), while the gradient "
                f"of '{pending[0]}' is being reduced ({len(pending)} in all); "
                "call it after step() or synchronize()"
            )
        distribution.path.reset()
        distribution.synchronized = False
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes are accumulated before gradients are reduced."""
        _check_backward_passes(passes)
        self._distribution.path.set_backward_passes_per_step(passes)

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        """Synchronizes, then scales the reduced gradients so that their joint norm fits.

        The next `step()` does not synchronize again. Arguments as
        `torch.nn.utils.clip_grad_norm_`.

        Returns:
            The norm before clipping, 0-d; the same on all ranks.
        """
        self._synchronize_if_needed()
        parameters = [p for group in self.param_groups for p in group["params"]]
        return torch.nn.utils.clip_grad_norm_(
            parameters, max_norm, norm_type, error_if_nonfinite, foreach
        )

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, which are then reduced as well; call it alike on every rank."""
        super().add_param_group(param_group)
        self._distribution.register(self)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises: an optimizer that is tied to running reductions has no copy."""
        raise TypeError(
            "a DistributedOptimizer can be neither copied nor pickled; "
            "save state_dict() and wrap a new optimizer"
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # GradScaler.step() asks for this right before it reads and unscales the gradients. They
        # have to be reduced by then, or ranks would disagree about skipping the step.
        self._synchronize_if_needed()
        return bool(self.__dict__.get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    def _synchronize(self) -> None:
        distribution = self._distribution
        distribution.synchronized = False
        distribution.path.synchronize()
        distribution.synchronized = True
        distribution.explicit = False

    def _synchronize_if_needed(self) -> None:
        """Reduces unless that has happened and no backward followed."""
        distribution = self._distribution
        if not distribution.synchronized or distribution.path.touched():
            self._synchronize()

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def synchronized_closure() -> Any:
            loss = closure()
            self._synchronize()
            return loss

        return synchronized_closure

    def _warn_once(self) -> None:
        if not self._distribution.warned:
            self._distribution.warned = True
            warnings.warn(
                "step() was called after synchronize() without skip_synchronize(); the gradients "
                "are not reduced a second time. Write `with optimizer.skip_synchronize(): "
                "optimizer.step()`",
                stacklevel=3,
            )


def DistributedOptimizer(  # noqa: N802 - the name scripts written for horovod.torch use
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    gradient_as_buffer_view: bool = True,
) -> Any:
    """Wraps `optimizer` so that its gradients are reduced over all ranks before each step.

    The returned object is an instance of the class of `optimizer` and shares its state,
    parameter groups and hooks, so schedulers made before go on working. Wrapping the same
    optimizer again replaces the earlier wrapping.

    Args:
        optimizer: any torch optimizer but LBFGS.
        named_parameters: `model.named_parameters()`; names appear in messages and must be equal on
            all ranks. Default: the names the optimizer was made with, else "param_group.i.j".
        compression: how gradients travel, see `Compression`.
        backward_passes_per_step: gradients of this many backward passes are accumulated (summed,
            as torch does) before they are reduced once.
        op: how gradients of the ranks are combined.
        gradient_predivide_factor: with Average, divide by this before the sum and by
            size() / factor after it; guards small types against overflow.
        groups: gradients that are reduced together: a number of groups, or lists of parameters;
            parameters in no list are reduced one by one.
        sparse_as_dense: turn sparse gradients into dense ones; without it they are an error.
        process_set: only the global one in this version.
        gradient_as_buffer_view: accepted; the engine packs gradients in this version.

    Returns:
        An optimizer with the further methods `synchronize`, `skip_synchronize`, `no_sync`,
        `set_backward_passes_per_step` and `clip_grad_norm_`.

    Raises:
        ValueError: an argument is wrong, or mydist has not been initialized.
    """
    _check_optimizer(optimizer)
    _check_backward_passes(backward_passes_per_step)
    _check_compression(compression)
    if process_set is not global_process_set:
        raise ValueError("process_set must be global_process_set in this version")
    options = ReductionOptions(
        op=_checked_op(op),
        prescale_factor=1.0 / _checked_predivide(gradient_predivide_factor, op),
        postscale_factor=gradient_predivide_factor,
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
        sparse_as_dense=bool(sparse_as_dense),
    )
    names = GradientNames(optimizer, named_parameters)
    members = parameter_groups(optimizer, groups)
    path = make_gradient_path(options)
    return _wrap(optimizer, _Distribution(path, names), members)


def _wrap(
    optimizer: torch.optim.Optimizer,
    distribution: _Distribution,
    groups: Sequence[Sequence[torch.Tensor]],
) -> torch.optim.Optimizer:
    """The new object: same state, a class that puts `_DistributedOptimizer` in front."""
    base = type(optimizer)
    if issubclass(base, _DistributedOptimizer):
        base = cast(type[torch.optim.Optimizer], base.__mro__[2])
    earlier = optimizer.__dict__.get("_distribution")
    if earlier is not None:
        earlier.path.remove()
    wrapper_class = type(
        f"Distributed{base.__name__}", (_DistributedOptimizer, base), {"__doc__": base.__doc__}
    )
    wrapped = cast(torch.optim.Optimizer, object.__new__(wrapper_class))
    wrapped.__dict__ = optimizer.__dict__
    wrapped._distribution = distribution  # type: ignore[attr-defined]
    _redirect_step(wrapped)
    distribution.register(wrapped, groups)
    # Hooks keep the path alive through the parameters; they must not outlive the optimizer.
    weakref.finalize(wrapped, distribution.path.remove).atexit = False
    return wrapped


def _redirect_step(wrapped: torch.optim.Optimizer) -> None:
    """Replaces the `step` that a scheduler put on the original object by the distributed one."""
    patched = wrapped.__dict__.get("step")
    if patched is None:
        return
    if not hasattr(patched, "_wrapped_by_lr_sched"):
        raise ValueError(
            "optimizer.step has been replaced on this object; wrap the optimizer with "
            "DistributedOptimizer first and replace its step afterwards"
        )

    def step(*args: Any, **kwargs: Any) -> Any:
        wrapped._opt_called = True  # type: ignore[attr-defined]  # what the scheduler's patch does
        return type(wrapped).step(wrapped, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    wrapped.__dict__["step"] = step


def _check_optimizer(optimizer: Any) -> None:
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"optimizer is {type(optimizer).__name__}, expected a torch.optim.Optimizer"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "LBFGS is not supported: its line search evaluates the loss of one rank, so ranks "
            "would take different steps; use a first-order optimizer"
        )


def _check_backward_passes(passes: Any) -> None:
    if not isinstance(passes, int) or isinstance(passes, bool) or passes <= 0:
        raise ValueError(
            f"backward_passes_per_step is {passes!r}, expected an integer of at least 1"
        )


def _check_compression(compression: Any) -> None:
    if not (
        callable(getattr(compression, "compress", None))
        and callable(getattr(compression, "decompress", None))
    ):
        raise ValueError(
            f"compression is {compression!r}, expected Compression.none, .fp16, .bf16 or a "
            "Compressor with compress and decompress"
        )


def _checked_op(op: Any) -> ReduceOp:
    try:
        return ReduceOp(op)
    except ValueError:
        raise ValueError(
            f"op is {op!r}, expected Average, Sum, Min, Max or Product"
            " (Adasum is not part of this version)"
        ) from None


def _checked_predivide(factor: Any, op: Any) -> float:
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not factor > 0:
        raise ValueError(f"gradient_predivide_factor is {factor!r}, expected a number above 0")
    if factor != 1.0 and op != Average:
        raise ValueError(
            f"gradient_predivide_factor is {factor!r} with op={op}; it needs op=Average. "
            "Scale the loss instead"
        )
    return float(factor)
