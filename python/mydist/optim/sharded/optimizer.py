"""ShardedOptimizer: each rank keeps and updates one slice of the parameters (ZeRO, stages 1 and 2).

Source: Rajbhandari et al., arXiv:1910.02054. docs/sharding.md says what each stage saves.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch

from ...collectives.arguments import check_process_set
from ...collectives.compression import Compression, Compressor
from ...job.error_text import check_whole, wrong_type
from ...job.process_set import ProcessSet, global_process_set
from ...reduce_op import Average
from ..consistency import ConsistencyCheck, check_interval
from ..distribution import Share
from ..gradient_names import GradientNames
from ..gradient_path import ReductionOptions, make_gradient_path
from ..optimizer_arguments import check_backward_passes, check_compression, check_optimizer
from ..strategies.network_job import NetworkJob
from ..strategies.run import StrategyRun
from ..strategies.synchronous import SynchronousGradients
from ..wrapping import base_class, wrap
from .agreement import Agreement
from .gradients import FULL, SHARD, ShardedGradients
from .offload import leaves_for_cpu
from .slices import Slices
from .state_at_wrapping import expect_same_state
from .steps import ShardedDistribution, ShardedSteps, Stage2Steps

__all__ = ["ShardedOptimizer"]

# Their step treats each element alone, so a slice of a parameter gets what the whole would get.
_NAMES = "SGD Adam AdamW Adagrad RMSprop NAdam RAdam Adadelta Adamax Rprop ASGD"
_ELEMENTWISE = frozenset(getattr(torch.optim, name) for name in _NAMES.split())
# Their step treats each parameter alone, and needs all of it.
_WHOLE = (torch.optim.Adafactor, torch.optim.Muon)
ELEMENT, PARAMETER = "element", "parameter"


def ShardedOptimizer(  # noqa: N802 - beside DistributedOptimizer
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, torch.Tensor]] | None = None,
    stage: int = 1,
    *,
    offload: str | None = None,
    master_dtype: torch.dtype | None = None,
    share_parameters: bool = False,
    accumulate: str = SHARD,
    partition: str | None = None,
    compression: type[Compressor] | Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Wraps `optimizer` so that each rank keeps the state of one slice of the parameters only.

    Gradients are averaged over the ranks. Each rank updates its slice, and all ranks give each
    other the new parameters: after `step()` every rank has the whole model. The returned object is
    an instance of the class of `optimizer`, with its groups, hooks and schedulers.
    `optimizer.state[parameter]` has the state of this rank's slice of that parameter, as flat
    tensors. State that `optimizer` has already is cut; all ranks compare what has state.

    Args:
        optimizer: a torch optimizer that treats each element, or each parameter, alone.
        named_parameters: `model.named_parameters()`; names appear in messages and must be equal on
            all ranks. Default: as for DistributedOptimizer.
        stage: 1: each rank has a slice of the state. 2: and of the gradients; `.grad` is None then.
        master_dtype: for parameters of lower precision: the optimizer updates a copy of this rank's
            slice in this dtype, torch.float32 as a rule, and parameters are rounded from it. Its
            state is in this dtype, too. A parameter that the program changes counts.
        offload: "cpu": for parameters on a GPU, the state is in the memory of the CPU, which also
            does the update. It has not run on a GPU yet. Parameters on the CPU stay as they are.
        share_parameters: True: the ranks of one host have one copy of the parameters, in memory
            that they share; the values of the lowest of these ranks count. CPU only.
        accumulate: for stage 2 with several backward passes. "shard": each is reduced into the
            slice. "full": they are added up on each rank, in whole gradients, and reduced once.
        partition: "element" cuts parameters, for classes that treat each element alone. "parameter"
            gives ranks whole ones, as for Muon and LAMB. Classes of torch.optim need no word.
        compression: how gradients travel, see `Compression`.
        backward_passes_per_step: gradients of this many backward passes are added up.
        process_set: the ranks that share the work; this rank is one of them.

    Returns:
        An optimizer with the methods that DistributedOptimizer adds, and `memory()`. With stage 2
        also `full_grads()`, a context in which `.grad` is whole and may be changed.

    Raises:
        ValueError: an argument is wrong, the parameters cannot be cut, this rank is not in
            `process_set`, or mydist has not been initialized.
        TypeError: an argument is of the wrong type.
        MismatchError: on every rank: the optimizer has state of a parameter on some ranks only.
    """
    check_optimizer(optimizer)
    _check_stage(stage, offload)
    _check_master(master_dtype)
    _check_words(accumulate, partition)
    options = _checked_options(backward_passes_per_step, compression, process_set)
    by_parameter = _checked_partition(optimizer, partition) == PARAMETER
    names = GradientNames(optimizer, named_parameters)
    _check_parameters(list(names.of(optimizer)), share_parameters)
    _warn_if_nothing_is_saved(optimizer, stage)
    offloads = _offloads(offload, list(names.of(optimizer)))
    slices = Slices(process_set, master_dtype, by_parameter, share_parameters, offloads)
    return _wrap(optimizer, stage, options, names, slices, accumulate)


def _checked_options(passes: int, compression: Any, process_set: Any) -> ReductionOptions:
    check_backward_passes(passes)
    check_compression(compression)
    check_process_set("ShardedOptimizer", process_set)
    return ReductionOptions(
        op=Average,
        prescale_factor=1.0,
        postscale_factor=1.0,
        compression=compression,
        backward_passes_per_step=passes,
        process_set=process_set,
    )


def _wrap(
    optimizer: torch.optim.Optimizer,
    stage: int,
    options: ReductionOptions,
    names: GradientNames,
    slices: Slices,
    accumulate: str,
) -> torch.optim.Optimizer:
    process_set = options.process_set
    partition = PARAMETER if slices.by_parameter else ELEMENT
    settings = f"stage={stage}, accumulate={accumulate!r}, partition={partition!r}"
    settings += f", master_dtype={slices.master_dtype}"
    settings += ", share_parameters=True" if slices.host is not None else ""
    communication = f"ShardedOptimizer({settings})"
    maker = ShardedSteps._maker
    consistency = ConsistencyCheck(check_interval(), process_set, communication, maker)
    named = list(names.of(optimizer))
    if check_interval() >= 0:
        expect_same_state(optimizer, named, process_set)
    path: Any
    if stage == 1:
        path = make_gradient_path(options, [parameter for parameter, _ in named])
    else:
        path = ShardedGradients(
            options,
            slices,
            accumulate,
            lambda: distribution.check(),
            lambda has_more: distribution.begin_step(has_more),
        )
    first = named[0][1] if named else ""
    job = NetworkJob([], process_set, options.compression, first)
    shares = {"*": Share(path, StrategyRun(SynchronousGradients(), job))}
    distribution = ShardedDistribution(
        shares, names, consistency, slices=slices, agreement=Agreement(slices), stage=stage
    )
    steps = ShardedSteps if stage == 1 else Stage2Steps
    return wrap(optimizer, steps, distribution, [], "Sharded")


def _check_stage(stage: Any, offload: Any) -> None:
    if check_whole("ShardedOptimizer: stage", stage) == 3:
        raise ValueError(
            "ShardedOptimizer: stage is 3, expected 1 or 2; stage 3 also cuts the parameters, "
            "which md.fully_shard(model) does"
        )
    if stage not in (1, 2):
        raise ValueError(f"ShardedOptimizer: stage is {stage}, expected 1 or 2")
    if offload not in (None, "cpu"):
        raise ValueError(f"ShardedOptimizer: offload is {offload!r}, expected 'cpu' or None")


def _check_master(dtype: Any) -> None:
    if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise ValueError(
            f"ShardedOptimizer: master_dtype is {dtype!r}, expected torch.float32, another "
            "floating-point dtype, or None"
        )


def _check_words(accumulate: Any, partition: Any) -> None:
    if accumulate not in (SHARD, FULL):
        raise ValueError(
            f"ShardedOptimizer: accumulate is {accumulate!r}, expected 'shard' or 'full'"
        )
    if partition not in (None, ELEMENT, PARAMETER):
        raise ValueError(
            f"ShardedOptimizer: partition is {partition!r}, expected 'element', 'parameter' or None"
        )


def _checked_partition(optimizer: torch.optim.Optimizer, partition: str | None) -> str:
    """The word, or the one that fits the class. Raises ValueError."""
    base = base_class(optimizer)
    if partition is None and base not in (*_ELEMENTWISE, *_WHOLE):
        raise ValueError(
            f"ShardedOptimizer: mydist does not know whether {base.__name__} treats each element "
            "alone. If it does, pass partition='element'. If it needs whole parameters, as Muon "
            "and LAMB do, pass partition='parameter'"
        )
    if partition == ELEMENT and base in _WHOLE:
        raise ValueError(
            f"ShardedOptimizer: partition is 'element', but {base.__name__} needs whole "
            "parameters; pass partition='parameter'"
        )
    if any(group.get("differentiable") for group in optimizer.param_groups):
        raise ValueError(
            "ShardedOptimizer: the optimizer was made with differentiable=True, and a step on "
            "slices cannot be differentiated; use DistributedOptimizer"
        )
    return partition or (PARAMETER if base in _WHOLE else ELEMENT)


def _check_parameters(named: list[tuple[torch.Tensor, str]], shares: Any) -> None:
    if not isinstance(shares, bool):
        raise wrong_type("ShardedOptimizer: share_parameters", shares, "True or False")
    devices: dict[torch.device, str] = {}
    for parameter, name in named:
        if torch.nn.parameter.is_lazy(parameter):
            raise ValueError(
                f"ShardedOptimizer: parameter '{name}' has no shape yet; run the model once first"
            )
        if not parameter.is_contiguous():
            raise ValueError(
                f"ShardedOptimizer: parameter '{name}' is not contiguous, so its slice has no flat "
                "view; make it contiguous (model.to(memory_format=torch.contiguous_format))"
            )
        devices.setdefault(parameter.device, name)
    if len(devices) > 1:
        places = ", ".join(f"'{name}' is on {device}" for device, name in devices.items())
        raise ValueError(
            f"ShardedOptimizer: the parameters are on several devices ({places}), expected one "
            "for each rank; wrap one optimizer for each device"
        )
    device = next(iter(devices), None)
    if shares and device is not None and device.type != "cpu":
        raise ValueError(
            f"ShardedOptimizer: share_parameters is True, and the parameters are on {device}; one "
            "copy of the parameters per host is for the CPU"
        )


def _offloads(offload: str | None, named: list[tuple[torch.Tensor, str]]) -> bool:
    """Whether state leaves the device of the parameters; warns if it is there already."""
    if offload is None:
        return False
    if not any(leaves_for_cpu(parameter.device) for parameter, _ in named):
        warnings.warn(
            "ShardedOptimizer: offload='cpu' changes nothing, as the parameters are on the CPU",
            stacklevel=3,
        )
        return False
    return True


def _warn_if_nothing_is_saved(optimizer: torch.optim.Optimizer, stage: int) -> None:
    is_sgd = base_class(optimizer) is torch.optim.SGD
    if stage == 1 and is_sgd and not any(g["momentum"] for g in optimizer.param_groups):
        warnings.warn(
            "ShardedOptimizer: SGD without momentum has no state, so stage=1 saves no memory; use "
            "stage=2 or DistributedOptimizer",
            stacklevel=3,
        )
