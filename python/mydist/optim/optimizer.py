"""DistributedOptimizer: reduces gradients over all ranks while backward is still running.

A hook on every parameter enqueues its gradient as soon as it is ready; `step()` waits for the
reduced gradients (`synchronize`) and then runs the wrapped optimizer. The call pattern follows
horovod.torch. docs/optimizer.md says what becomes of sparse gradients, and what op=Adasum changes.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch

from ..collectives.arguments import check_process_set
from ..collectives.compression import Compression, Compressor
from ..job.process_set import ProcessSet, global_process_set
from ..reduce_op import Average, ReduceOp
from .adasum_steps import AdasumPath, AdasumSteps
from .consistency import ConsistencyCheck, check_interval
from .distributed_steps import DistributedSteps, Distribution
from .gradient_names import GradientNames, parameter_groups
from .gradient_path import ReductionOptions, make_gradient_path
from .learning_rate import pass_on_warmup
from .optimizer_arguments import (
    check_backward_passes,
    check_compression,
    check_optimizer,
    checked_op,
    checked_predivide,
    chosen_groups,
)

__all__ = ["DistributedOptimizer"]


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
    num_groups: int | None = None,
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
        op: how gradients of the ranks are combined. With Adasum (arXiv:2006.02924) every rank takes
            its own step and the changes of the parameters are combined; see docs/optimizer.md.
        gradient_predivide_factor: with Average, divide by this before the sum and by
            size() / factor after it; guards small types against overflow.
        groups: gradients that are reduced together: a number of groups, or lists of parameters;
            parameters in no list are reduced one by one.
        sparse_as_dense: turn sparse gradients into dense ones; without it their rows are gathered.
        process_set: the ranks whose gradients are reduced; this rank is one of them.
        gradient_as_buffer_view: `.grad` is a view of memory in which gradients lie side by side and
            are reduced without a copy; see docs/optimizer.md. False: the same bits, copied.
        num_groups: older name of `groups`, deprecated.

    Returns:
        An optimizer with the further methods `synchronize`, `skip_synchronize`, `no_sync`,
        `set_backward_passes_per_step` and `clip_grad_norm_`.

    Raises:
        ValueError: an argument is wrong, this rank is not in `process_set`, or mydist has not been
            initialized.
        TypeError: `process_set` is no ProcessSet.
    """
    check_optimizer(optimizer)
    check_backward_passes(backward_passes_per_step)
    check_compression(compression)
    reduce_op = checked_op(op)
    options = ReductionOptions(
        op=reduce_op,
        prescale_factor=1.0 / checked_predivide(gradient_predivide_factor, reduce_op),
        postscale_factor=gradient_predivide_factor,
        compression=compression,
        backward_passes_per_step=backward_passes_per_step,
        sparse_as_dense=bool(sparse_as_dense),
        process_set=process_set,
        gradient_as_buffer_view=bool(gradient_as_buffer_view),
    )
    check_process_set("DistributedOptimizer", process_set)
    names = GradientNames(optimizer, named_parameters)
    members = parameter_groups(optimizer, chosen_groups(groups, num_groups))
    adasum = reduce_op == ReduceOp.ADASUM
    path = AdasumPath(options) if adasum else make_gradient_path(options, optimizer)
    steps = AdasumSteps if adasum else DistributedSteps
    consistency = ConsistencyCheck(check_interval(), options.process_set)
    return _wrap(optimizer, steps, Distribution(path, names, consistency), members)


def _wrap(
    optimizer: torch.optim.Optimizer,
    steps: type[DistributedSteps],
    distribution: Distribution,
    groups: Sequence[Sequence[torch.Tensor]],
) -> torch.optim.Optimizer:
    """The new object: same state, a class that puts `steps` in front."""
    base = next(c for c in type(optimizer).__mro__ if not issubclass(c, DistributedSteps))
    earlier = optimizer.__dict__.get("_distribution")
    if earlier is not None:
        earlier.path.remove()
    wrapper_class = type(f"Distributed{base.__name__}", (steps, base), {"__doc__": base.__doc__})
    wrapped = cast(torch.optim.Optimizer, object.__new__(wrapper_class))
    wrapped.__dict__ = optimizer.__dict__
    wrapped._distribution = distribution  # type: ignore[attr-defined]
    _redirect_step(wrapped)
    pass_on_warmup(wrapped)
    # Hooks keep the path alive through the parameters; they must not outlive the optimizer.
    weakref.finalize(wrapped, distribution.path.remove).atexit = False
    distribution.register(wrapped, groups)
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

    # Weakly: the optimizer owns this function, and must end with its last user.
    reference = weakref.ref(wrapped)

    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer = reference()
        if optimizer is None:
            raise ValueError(
                "step() was called on an optimizer whose DistributedOptimizer no longer exists; "
                "keep what DistributedOptimizer() returns, and call its step()"
            )
        optimizer._opt_called = True  # type: ignore[attr-defined]  # what the scheduler's patch does
        return type(optimizer).step(optimizer, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    wrapped.__dict__["step"] = step
