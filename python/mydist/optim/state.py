"""State: makes parameters and optimizer state equal on all ranks before training starts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..collectives import broadcast_async_
from ..collectives.arguments import check_int, check_process_set
from ..collectives.handles import synchronize_all
from ..collectives.objects import allgather_object, broadcast_object
from ..errors import MismatchError
from ..job.process_set import ProcessSet, global_process_set
from ..job.topology import rank
from .gradient_names import is_named, parameters_of

__all__ = ["broadcast_optimizer_state", "broadcast_parameters"]


def broadcast_parameters(
    params: Mapping[str, Any] | Sequence[tuple[str, torch.Tensor]],
    root_rank: int,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Overwrites the tensors, in place, with those of rank `root_rank`. Blocking.

    Args:
        params: `model.state_dict()`, or a list such as `list(model.named_parameters())`; the same
            names, shapes and dtypes on every rank. Entries that are None are skipped.
        root_rank: global rank whose values win.
        process_set: the ranks that take part; this one and the root are among them.

    Raises:
        ValueError: `params` is a generator, an entry is not a tensor, a name appears twice, or
            `root_rank` is not in the process set.
        TypeError: `root_rank` is no int, or `process_set` no ProcessSet.
        MismatchError: a shape or dtype differs between ranks.
        MydistError: the job failed; see mydist.errors.
    """
    named = {f"broadcast_parameters.{name}": tensor for name, tensor in _named_tensors(params)}
    _check_root("broadcast_parameters", root_rank, process_set)
    broadcast_all(named, root_rank, process_set)


def broadcast_all(
    named: Mapping[str, torch.Tensor], root_rank: int, process_set: ProcessSet
) -> None:
    """In place, all in flight at once; under these names."""
    synchronize_all(
        [
            broadcast_async_(tensor.detach(), root_rank, name=name, process_set=process_set)
            for name, tensor in named.items()
        ]
    )


def _check_root(call: str, root_rank: Any, process_set: ProcessSet) -> None:
    check_process_set(call, process_set)
    if check_int(call, "root_rank", root_rank) not in process_set.ranks:
        raise ValueError(
            f"{call}: root_rank is {root_rank}, expected one of the ranks {process_set.ranks} of "
            "the process set; pass the global rank that sends its values"
        )


def _named_tensors(params: Any) -> list[tuple[str, torch.Tensor]]:
    """The entries of `params`, sorted by name when it is a mapping."""
    if isinstance(params, Mapping):
        entries = sorted(params.items())
    elif isinstance(params, Sequence) and not isinstance(params, (str, bytes)):
        entries = list(params)
    else:
        hint = "pass a list: list(model.named_parameters())"
        kind = "a generator" if isinstance(params, Iterator) else type(params).__name__
        raise ValueError(f"params is {kind}, expected a state_dict or a list of pairs; {hint}")
    named: dict[str, torch.Tensor] = {}
    for entry in entries:
        if not is_named(entry):
            raise ValueError(
                f"params contains {type(entry).__name__}, expected (name, tensor) pairs; "
                "pass model.state_dict() or list(model.named_parameters())"
            )
        name, value = entry
        if name in named:
            raise ValueError(f"params contains the name '{name}' twice; names must be unique")
        if value is None:
            continue
        if not isinstance(value, torch.Tensor):
            raise ValueError(
                f"params['{name}'] is {type(value).__name__}, expected a tensor; "
                "send other values with broadcast_object"
            )
        named[name] = value
    return list(named.items())


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    model: torch.nn.Module | None = None,
    process_set: ProcessSet = global_process_set,
) -> None:
    """Makes state and hyperparameters of `optimizer` equal to those of rank `root_rank`. Blocking.

    Structure, numbers and other small values travel pickled as in `broadcast_object`, tensors as
    they are. No step is taken: parameters do not change, and a state that does not exist yet on a
    rank is created there. Tensors that fit are overwritten in place, so schedulers and fused
    kernels that hold on to them keep working.

    Args:
        optimizer: any torch optimizer but LBFGS, wrapped by DistributedOptimizer or not.
        root_rank: global rank whose state wins.
        model: accepted for scripts written for horovod.torch; not needed.
        process_set: the ranks that take part; this one and the root are among them.

    Raises:
        ValueError: `optimizer` is no optimizer, or LBFGS, whose state refers to its own flat
            parameter copy, or sharded; or `root_rank` is not in the process set.
        TypeError: `root_rank` is no int, or `process_set` no ProcessSet.
        MismatchError: the ranks' optimizers have different parameter groups.
        MydistError: the root's state cannot be pickled, or the job failed; see mydist.errors.
    """
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ValueError(
            f"optimizer is {type(optimizer).__name__}, expected a torch.optim.Optimizer; send a "
            "model's parameters with broadcast_parameters(model.state_dict(), root_rank)"
        )
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError(
            "broadcast_optimizer_state does not support LBFGS: its history belongs to the "
            "gradients of one rank. Broadcast the parameters and make a new LBFGS"
        )
    if getattr(optimizer, "_cuts_state", False):
        raise ValueError(
            "broadcast_optimizer_state: the optimizer is sharded, and each rank has the state of "
            "its own slice. Call it before ShardedOptimizer, or give the state of one rank to all "
            "with scatter_state"
        )
    _check_root("broadcast_optimizer_state", root_rank, process_set)
    _check_layout(optimizer, process_set)
    broadcast_state_of(parameters_of(optimizer), optimizer, root_rank, process_set)


def broadcast_state_of(
    parameters: Sequence[torch.Tensor],
    optimizer: torch.optim.Optimizer,
    root_rank: int,
    process_set: ProcessSet,
) -> None:
    """As `broadcast_optimizer_state`, but the state of other parameters stays as it is."""
    tensors: list[torch.Tensor] = []
    plan = _strip(_snapshot(parameters, optimizer), tensors) if rank() == root_rank else None
    plan = broadcast_object(plan, root_rank, "broadcast_optimizer_state.plan", process_set)
    if rank() != root_rank:
        targets = _Targets(tensors, _gpu_of(parameters))
        _pair(plan, _snapshot(parameters, optimizer), targets)
    named = {f"broadcast_optimizer_state.{i}": tensor for i, tensor in enumerate(tensors)}
    broadcast_all(named, root_rank, process_set)
    if rank() != root_rank:
        left = iter(tensors)
        _install(parameters, optimizer, _mapped(plan, _TensorPlace, lambda _: next(left)))


@dataclass(frozen=True)
class _TensorPlace:
    """Stands for a tensor in the pickled structure."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    stride: tuple[int, ...] | None  # Where elements lie; None is row by row.
    on_gpu: bool  # Some state stays on the CPU, the step count of Adam, say.

    def fits(self, tensor: Any) -> bool:
        """Whether `tensor` can take what travels for this place."""
        return (
            isinstance(tensor, torch.Tensor)
            and tuple(tensor.shape) == self.shape
            and tensor.dtype == self.dtype
            and tensor.is_cuda == self.on_gpu
            and (tensor.is_contiguous() or tensor.stride() == self.stride)
        )

    def new(self, gpu: torch.device) -> torch.Tensor:
        """A tensor for it, laid out as on the root; on `gpu` if the root has it on one."""
        device = gpu if self.on_gpu else torch.device("cpu")
        options: dict[str, Any] = {"dtype": self.dtype, "device": device}
        with torch.inference_mode(False):  # The optimizer writes to it later.
            if self.stride is None:
                return torch.empty(self.shape, **options)
            return torch.empty_strided(self.shape, self.stride, **options)


def _place_of(tensor: torch.Tensor) -> _TensorPlace:
    dense = torch.ops.aten.is_non_overlapping_and_dense(tensor)
    stride = tuple(tensor.stride()) if dense and not tensor.is_contiguous() else None
    return _TensorPlace(tuple(tensor.shape), tensor.dtype, stride, tensor.is_cuda)


def _check_layout(optimizer: torch.optim.Optimizer, process_set: ProcessSet) -> None:
    """Raises on every rank when parameter groups differ anywhere."""
    layout = [[tuple(p.shape) for p in group["params"]] for group in optimizer.param_groups]
    layouts = allgather_object(layout, "broadcast_optimizer_state.layout", process_set)
    if any(other != layouts[0] for other in layouts):
        table = "; ".join(
            f"rank {i}: {[len(group) for group in groups]} parameters per group"
            for i, groups in zip(process_set.ranks, layouts, strict=True)
        )
        raise MismatchError(
            "broadcast_optimizer_state: the optimizers of the ranks have different parameters "
            f"({table}); make the same optimizer on every rank"
        )


def _snapshot(
    parameters: Sequence[torch.Tensor], optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """State by parameter index, and the groups without their parameters. Nothing is copied."""
    index_of = {id(p): index for index, p in enumerate(parameters)}
    by_index: dict[int, Any] = {}
    other: dict[Any, Any] = {}
    entries: Mapping[Any, Any] = optimizer.state
    for key, value in entries.items():
        if id(key) in index_of:
            by_index[index_of[id(key)]] = value
        elif not isinstance(key, torch.Tensor):  # some optimizers keep more under other keys
            other[key] = value
    groups = [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]
    return {"state": dict(sorted(by_index.items())), "other": other, "groups": groups}


def _mapped(value: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """`value` with everything of that kind in it converted, in order."""
    if isinstance(value, kind):
        return convert(value)
    if isinstance(value, Mapping):
        return {key: _mapped(item, kind, convert) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_mapped(item, kind, convert) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _strip(value: Any, tensors: list[torch.Tensor]) -> Any:
    """`value` with every tensor replaced by its place; the tensors are appended in order."""

    def take(tensor: torch.Tensor) -> _TensorPlace:
        tensors.append(tensor)
        return _place_of(tensor)

    return _mapped(value, torch.Tensor, take)


def _gpu_of(parameters: Sequence[torch.Tensor]) -> torch.device:
    """Where the first one on a GPU is; the CPU when there is none, which is a mismatch."""
    devices = (p.device for p in parameters if p.is_cuda)
    return next(devices, torch.device("cpu"))


@dataclass
class _Targets:
    """What is to be written, in the order of the plan; no two share memory."""

    tensors: list[torch.Tensor]
    gpu: torch.device  # Where new ones are made.
    used: set[int] = field(default_factory=set)  # Addresses given out.

    def add(self, place: _TensorPlace, current: Any) -> None:
        """The tensor that is there now if it fits, else a new one."""
        fits = place.fits(current) and current.data_ptr() not in self.used
        self.tensors.append(current if fits else place.new(self.gpu))
        self.used.add(self.tensors[-1].data_ptr())


def _pair(plan: Any, current: Any, targets: _Targets) -> None:
    """Adds a target for every place in `plan`."""
    if isinstance(plan, _TensorPlace):
        targets.add(plan, current)
    elif isinstance(plan, Mapping):
        known = current if isinstance(current, Mapping) else {}
        for key, item in plan.items():
            _pair(item, known.get(key), targets)
    elif isinstance(plan, (list, tuple)):
        same = isinstance(current, (list, tuple)) and len(current) == len(plan)
        for index, item in enumerate(plan):
            _pair(item, current[index] if same else None, targets)


def _install(
    parameters: Sequence[torch.Tensor],
    optimizer: torch.optim.Optimizer,
    snapshot: dict[str, Any],
) -> None:
    """Writes a snapshot into the optimizer, without the casts of load_state_dict."""
    known = {id(parameter) for parameter in parameters}
    for key in list(optimizer.state):
        if id(key) in known or not isinstance(key, torch.Tensor):
            del optimizer.state[key]
    for index, value in snapshot["state"].items():
        optimizer.state[parameters[index]] = value
    optimizer.state.update(snapshot["other"])
    for group, values in zip(optimizer.param_groups, snapshot["groups"], strict=True):
        params = group["params"]
        group.clear()
        group["params"] = params
        group.update(values)
