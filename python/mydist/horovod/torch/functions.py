"""Parameters, optimizer state and objects: `horovod.torch.functions`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from ...collectives import objects
from ..common.process_sets import ProcessSet, global_process_set, own_set
from .asynchronous import broadcast_async_, synchronize

__all__ = [
    "allgather_object",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
]


def broadcast_parameters(params: Any, root_rank: int) -> None:
    """Overwrites tensors with those of the rank `root_rank`.

    Args:
        params: a dict, such as `model.state_dict()`; or a list of tensors or of pairs (name,
            tensor). None in place of a tensor is left out.
        root_rank: whose values all get.

    Raises ValueError for anything else.
    """
    if isinstance(params, dict):
        named = sorted(params.items())
    elif isinstance(params, list):
        named = [item if isinstance(item, tuple) else (None, item) for item in params]
    else:
        raise ValueError(f"invalid params of type: {type(params)}")
    handles = [
        broadcast_async_(tensor, root_rank, name) for name, tensor in named if tensor is not None
    ]
    for handle in handles:
        synchronize(handle)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None
) -> None:
    """Options and state become those of the rank `root_rank`.

    An optimizer without state takes a step along gradients of zeros first, as Horovod's does: so
    counts of steps begin at 1, and weight decay changes the parameters.

    Args:
        optimizer: any but LBFGS, wrapped or not.
        root_rank: whose state all get.
        model: names parameters with sparse gradients.

    Raises ValueError for LBFGS.
    """
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("cannot broadcast torch.optim.LBFGS state")
    if not optimizer.state_dict()["state"]:
        _make_state(optimizer, _sparse_parameters(model))
    state = optimizer.state_dict()
    if not state["state"]:
        return
    tensors: list[tuple[str, torch.Tensor]] = []
    values: dict[str, Any] = {}
    writers: dict[str, Callable[[Any], None]] = {}
    counts: Counter[str] = Counter()

    def note(owner: dict[Any, Any], key: Any, label: str) -> None:
        values[label] = owner[key]
        writers[label] = lambda value: owner.__setitem__(key, value)

    for index, (saved, group) in enumerate(
        zip(state["param_groups"], optimizer.param_groups, strict=True)
    ):
        for option in saved:
            if option != "params":
                note(group, option, f"{option}.{index}")
        for number, parameter in zip(saved["params"], group["params"], strict=True):
            # Without gradients it has no state.
            for key, value in state["state"].get(number, {}).items():
                counts[str(key)] += 1
                label = f"{key}.{counts[str(key)]}"
                if torch.is_tensor(value):
                    tensors.append((label, value))
                else:
                    note(optimizer.state[parameter], key, label)
    broadcast_parameters(tensors, root_rank)
    for label, value in broadcast_object(values, root_rank).items():
        writers[label](value)


def _sparse_parameters(model: torch.nn.Module | None) -> set[int]:
    """By id(), those of embeddings with sparse gradients."""
    modules = [] if model is None else list(model.modules())
    return {
        id(parameter)
        for module in modules
        if isinstance(module, torch.nn.Embedding) and module.sparse
        for parameter in module.parameters()
    }


def _make_state(optimizer: torch.optim.Optimizer, sparse: set[int]) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            parameter.grad = torch.zeros_like(parameter).detach()
            is_sgd = isinstance(optimizer, torch.optim.SGD) and id(parameter) in sparse
            if is_sgd or isinstance(optimizer, torch.optim.SparseAdam):
                parameter.grad = parameter.grad.to_sparse()
    # The wrapped optimizer's own step would wait for the other ranks.
    own_step = getattr(optimizer, "local_step", optimizer.step)
    own_step()


def broadcast_object(
    obj: Any,
    root_rank: int = 0,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """The object of the rank `root_rank`, on every rank; cloudpickle must take it."""
    return objects.broadcast_object(obj, root_rank, name, own_set(process_set))


def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """The objects of all ranks, in rank order; cloudpickle must take them."""
    return objects.allgather_object(obj, name, own_set(global_process_set))
