"""Wrapping: makes a distributed optimizer of an optimizer, around the same state."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch

from .distributed_steps import DistributedSteps
from .distribution import Distribution
from .learning_rate import pass_on_warmup
from .strategies.network_job import NetworkJob

# Those that a new epoch of an elastic job makes anew.
_live: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def wrap(
    optimizer: torch.optim.Optimizer,
    steps: type[DistributedSteps],
    distribution: Distribution,
    groups: Sequence[Sequence[torch.Tensor]],
    kind: str = "Distributed",
) -> torch.optim.Optimizer:
    """The new object: the state of `optimizer`, and a class that puts `steps` in front.

    Raises ValueError when the optimizer's present wrapper cannot be replaced.
    """
    base = base_class(optimizer)
    earlier: Distribution | None = optimizer.__dict__.get("_distribution")
    if earlier is not None:
        earlier.expect_replaceable()
        _end_paths(earlier)
    wrapper_class = type(f"{kind}{base.__name__}", (steps, base), {"__doc__": base.__doc__})
    wrapped = cast(torch.optim.Optimizer, object.__new__(wrapper_class))
    wrapped.__dict__ = optimizer.__dict__
    _attach(wrapped, distribution)
    _redirect_step(wrapped)
    pass_on_warmup(wrapped)
    _register(wrapped, distribution, groups)
    _live.add(wrapped)
    return wrapped


def renew_all() -> None:
    """Wrapped optimizers work in a new job; gradients that were on their way are dropped.

    Strategies and codecs begin anew, from the present parameters. Raises ValueError for an
    optimizer that has its state in slices, or a process set that is not there any more.
    """
    # Ranks that were not in earlier jobs number from 1.
    NetworkJob.restart_names()
    # An optimizer that was wrapped twice shares its distribution with the older wrapper.
    newest = {id(o.__dict__): o for o in list(_live) if type(o) is o.__dict__.get("_wrapper")}
    for optimizer in newest.values():
        distribution: Distribution = optimizer.__dict__["_distribution"]
        renewal = distribution.renewal
        if renewal is None:
            raise ValueError(
                f"{type(optimizer).__name__}: its state lies in slices on the ranks of the job "
                "that has ended; use DistributedOptimizer in an elastic job"
            )
        _end_paths(distribution)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        fresh = renewal.make(optimizer)
        fresh.renewal = renewal
        _attach(optimizer, fresh)
        _register(optimizer, fresh, renewal.groups)


def _attach(wrapped: torch.optim.Optimizer, distribution: Distribution) -> None:
    for run in distribution.runs:
        run.job.attach(wrapped)
    distribution.units.attach(wrapped)
    wrapped.__dict__["_distribution"] = distribution
    wrapped.__dict__["_wrapper"] = type(wrapped)


def _register(
    wrapped: torch.optim.Optimizer,
    distribution: Distribution,
    groups: Sequence[Sequence[torch.Tensor]],
) -> None:
    # Hooks keep the path alive through the parameters; they must not outlive the optimizer.
    for path in distribution.paths:
        finalizer = weakref.finalize(wrapped, path.remove)
        finalizer.atexit = False
        distribution.finalizers.append(finalizer)
    distribution.register(wrapped, groups)


def _end_paths(distribution: Distribution) -> None:
    """Removes its hooks. A finalizer would keep a path, and what it has, until its object ends."""
    for finalizer in distribution.finalizers:
        finalizer()


def base_class(optimizer: torch.optim.Optimizer) -> Any:
    """The class of the optimizer that was wrapped."""
    return next(c for c in type(optimizer).__mro__ if not issubclass(c, DistributedSteps))


def _redirect_step(wrapped: torch.optim.Optimizer) -> None:
    """Replaces the `step` that a scheduler put on the original object by the distributed one."""
    maker = cast(DistributedSteps, wrapped)._maker
    patched = wrapped.__dict__.get("step")
    if patched is None:
        return
    if not hasattr(patched, "_wrapped_by_lr_sched"):
        raise ValueError(
            "optimizer.step has been replaced on this object; wrap the optimizer with "
            f"{maker} first and replace its step afterwards"
        )

    # Weakly: the optimizer owns this function, and must end with its last user.
    reference = weakref.ref(wrapped)

    def step(*args: Any, **kwargs: Any) -> Any:
        optimizer = reference()
        if optimizer is None:
            raise ValueError(
                f"step() was called on an optimizer whose {maker} no longer exists; "
                f"keep what {maker}() returns, and call its step()"
            )
        optimizer._opt_called = True  # type: ignore[attr-defined]  # what the scheduler's patch does
        return type(optimizer).step(optimizer, *args, **kwargs)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    wrapped.__dict__["step"] = step
