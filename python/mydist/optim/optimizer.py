"""DistributedOptimizer: reduces gradients over all ranks while backward is still running.

A hook on every parameter enqueues its gradient as soon as it is ready; `step()` waits for the
reduced gradients (`synchronize`) and then runs the wrapped optimizer. The call pattern follows
horovod.torch. docs/optimizer.md says what becomes of sparse gradients, and what op=Adasum changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from ..collectives.arguments import check_process_set
from ..collectives.compression import Compression, CompressionLike
from ..job.process_set import ProcessSet, global_process_set
from ..reduce_op import Average, ReduceOp
from .adasum_steps import AdasumPath, AdasumSteps
from .consistency import ConsistencyCheck, check_interval
from .distributed_steps import DistributedSteps
from .distribution import Distribution, Renewal, description, make_shares
from .encoding import choice
from .encoding.steps import CodecSteps, CodecStrategySteps
from .encoding.units import StepUnits
from .gradient_names import GradientNames, parameter_groups
from .gradient_path import GradientPath, ReductionOptions, SoloPath, make_gradient_path
from .optimizer_arguments import (
    check_backward_passes,
    check_optimizer,
    checked_buffers,
    checked_compression,
    checked_op,
    checked_predivide,
    checked_strategies,
    chosen_groups,
    refuse_for_strategies,
    refuse_second_momentum,
)
from .strategies.network_job import NetworkJob
from .strategies.run import StrategyRun
from .strategies.steps import StrategySteps
from .strategies.strategy import Strategy
from .strategies.synchronous import SynchronousGradients
from .wrapping import wrap

__all__ = ["DistributedOptimizer"]


def DistributedOptimizer(  # noqa: N802 - the name scripts written for horovod.torch use
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    compression: CompressionLike = Compression.none,
    backward_passes_per_step: int = 1,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    groups: int | Sequence[Sequence[torch.Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
    gradient_as_buffer_view: bool = True,
    num_groups: int | None = None,
    *,
    communication: Strategy | Mapping[str, Strategy] | None = None,
    named_buffers: Iterable[tuple[str, torch.Tensor]] = (),
) -> Any:
    """Wraps `optimizer` so that its gradients are reduced over all ranks before each step.

    The returned object is an instance of the class of `optimizer` and shares its state,
    parameter groups and hooks, so schedulers made before go on working. Wrapping the same
    optimizer again replaces the earlier wrapping.

    Args:
        optimizer: any torch optimizer but LBFGS.
        named_parameters: `model.named_parameters()`; names appear in messages and must be equal on
            all ranks. Default: the names the optimizer was made with, else "param_group.i.j".
        compression: how gradients travel: `Compression.fp16`, a codec such as `Compression.int8()`,
            or a dict of them by pattern as for `communication`; see docs/compression.md.
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
        communication: when the ranks average what, see docs/strategies.md; the default is
            SynchronousGradients(). A dict `{"emb.*": md.LocalSGD(8), "*": …}` has a strategy for
            each part of the model: the first shell pattern that matches a name takes it. All but
            the default need op=Average, without groups or gradient_predivide_factor.
        named_buffers: `model.named_buffers()`, such as running statistics of BatchNorm, for
            strategies to average. SynchronousGradients averages them in `finish()` only.

    Returns:
        An optimizer with the further methods `finish`, `synchronize`, `skip_synchronize`,
        `no_sync`, `set_backward_passes_per_step`, `clip_grad_norm_` and `count_samples`.

    Raises:
        ValueError: an argument is wrong, this rank is not in `process_set`, or mydist has not been
            initialized.
        TypeError: `process_set` is no ProcessSet, or `communication` no strategy or dict of them.
    """
    strategies = checked_strategies(communication)
    check_optimizer(optimizer)
    options = _checked_options(op, gradient_predivide_factor, backward_passes_per_step, process_set)
    options.sparse_as_dense = bool(sparse_as_dense)
    options.gradient_as_buffer_view = bool(gradient_as_buffer_view)
    check_process_set("DistributedOptimizer", process_set)
    names = GradientNames(optimizer, named_parameters)
    every = [name for _, name in names.of(optimizer)]
    options.compression = checked_compression(optimizer, compression, every, options.op, strategies)
    members = parameter_groups(optimizer, chosen_groups(groups, num_groups))
    refuse_for_strategies(strategies, options.op, members, gradient_predivide_factor)
    return _wrap(optimizer, options, names, members, strategies, checked_buffers(named_buffers))


def _checked_options(
    op: ReduceOp, predivide: float, passes: int, process_set: ProcessSet
) -> ReductionOptions:
    check_backward_passes(passes)
    reduce_op = checked_op(op)
    return ReductionOptions(
        op=reduce_op,
        prescale_factor=1.0 / checked_predivide(predivide, reduce_op),
        postscale_factor=predivide,
        compression=Compression.none,
        backward_passes_per_step=passes,
        process_set=process_set,
    )


def _wrap(
    optimizer: torch.optim.Optimizer,
    options: ReductionOptions,
    names: GradientNames,
    members: Sequence[Sequence[torch.Tensor]],
    strategies: Mapping[str, Strategy],
    buffers: Sequence[tuple[str, torch.Tensor]],
) -> torch.optim.Optimizer:
    """Chooses the paths of the gradients, and the methods that go with them."""

    def check_groups(of: torch.optim.Optimizer) -> None:
        refuse_second_momentum(options.compression, of, list(names.of(of)))

    check_groups(optimizer)
    is_adasum = options.op == ReduceOp.ADASUM
    codecs = choice.text(choice.by_pattern(options.compression))
    is_mapping = isinstance(options.compression, Mapping)  # So no strategy sends anything.

    def job_of(buffers: list[torch.Tensor], first: str) -> NetworkJob:
        compression = Compression.none if is_mapping else options.compression
        return NetworkJob(buffers, options.process_set, compression, first)

    def path_of(run: StrategyRun, parameters: list[torch.Tensor]) -> GradientPath:
        if is_adasum:
            return AdasumPath(options)
        return SoloPath(options) if run.is_local else make_gradient_path(options, parameters)

    def make(of: torch.optim.Optimizer) -> Distribution:
        units = StepUnits()
        options.units_of, options.momentum_of = units, units.momentum_of
        shares = make_shares(strategies, list(names.of(of)), buffers, job_of, path_of)
        compared = description(shares) + (f", compression={codecs}" if codecs else "")
        consistency = ConsistencyCheck(check_interval(), options.process_set, compared)
        return Distribution(
            shares,
            names,
            consistency,
            units,
            options.sparse_as_dense,
            check_groups=check_groups,
        )

    is_plain = all(isinstance(s, SynchronousGradients) for s in strategies.values())
    steps: type[DistributedSteps] = AdasumSteps if is_adasum else DistributedSteps
    if not is_adasum:
        plain, other = (
            (CodecSteps, CodecStrategySteps) if codecs else (DistributedSteps, StrategySteps)
        )
        steps = plain if is_plain else other
    distribution = make(optimizer)
    # Not in `make`: a function that names itself is freed by the garbage collector only.
    distribution.renewal = Renewal(make, members)
    return wrap(optimizer, steps, distribution, members)
