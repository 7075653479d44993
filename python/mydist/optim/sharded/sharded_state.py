"""The state of a sharded optimizer: in slices, and whole on one rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import torch

from ...collectives import gather, scatter
from ...collectives.arguments import check_int
from ...collectives.objects import allgather_object, broadcast_object
from ...job.error_text import wrong_type
from ...job.topology import rank
from ..wrapping import base_class
from .slices import MASTER, OwnPiece, Slices, cut_state, is_per_element
from .state_slice import StateSlice

if TYPE_CHECKING:
    from .steps import ShardedSteps

__all__ = ["gather_state", "prepare_state", "scatter_state"]

# Stands in a plan for a state with one number per element, which is sent by itself.
_CUT = "cut"


def gather_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> dict[str, Any] | None:
    """The state of a sharded optimizer as one process would have it, on the root. Collective.

    Any optimizer of the class can load it, sharded or not, on any number of ranks. Parameters
    travel one by one, so the root needs room for the whole state once, and others for nothing more.

    Args:
        optimizer: from ShardedOptimizer.
        root_rank: the global rank that gets the state.

    Returns:
        What `state_dict()` of the wrapped class returns, on the root; None elsewhere.

    Raises:
        TypeError: the optimizer is not sharded.
        ValueError: the root is not in the process set.
        MydistError: the job failed; see mydist.errors.
    """
    sharded, slices = _sharded("gather_state", optimizer), _sharded_slices(optimizer)
    _check_root("gather_state", root_rank, slices)
    own = {
        index: {k: _described(k, v, parameter, piece) for k, v in sharded.state[parameter].items()}
        for index, parameter, piece in entries_of(sharded)
        if parameter in sharded.state
    }
    everywhere = allgather_object(own, name="gather_state.plan", process_set=slices.process_set)
    state: dict[int, dict[str, Any]] = {}
    for index, parameter, piece in entries_of(sharded):
        described: dict[str, Any] = next((p[index] for p in everywhere if index in p), {})
        values = sharded.state.get(parameter, {})
        whole = {}
        for key, (kind, value) in described.items():
            if kind != _CUT or not slices.has_bucket(parameter):
                whole[key] = _copied(values.get(key, value))
                continue
            part = (
                values[key].reshape(-1)
                if piece
                else torch.empty(0, dtype=value, device=slices.state_device(parameter))
            )
            name = f"gather_state.{index}.{key}"
            flat = gather(part, root_rank, name=name, process_set=slices.process_set)
            whole[key] = None if flat is None else flat.view(parameter.shape)
        if whole:
            state[index] = whole
    if rank() != root_rank:
        return None
    return {"state": state, "param_groups": sharded._whole_state_dict()["param_groups"]}


def scatter_state(
    optimizer: torch.optim.Optimizer, state: Mapping[str, Any] | None, root_rank: int = 0
) -> None:
    """Loads a state that the root has whole: each rank takes its slices. Collective.

    Args:
        optimizer: from ShardedOptimizer.
        state: on the root what `gather_state`, or `state_dict()` of an optimizer of the class that
            is not sharded, returned; not read elsewhere.
        root_rank: the global rank that has the state.

    Raises:
        TypeError: the optimizer is not sharded.
        ValueError: on every rank: the state does not fit the parameters, with the differences; or
            the root is not in the process set.
        MydistError: the job failed; see mydist.errors.
    """
    sharded, slices = _sharded("scatter_state", optimizer), _sharded_slices(optimizer)
    _check_root("scatter_state", root_rank, slices)
    is_root = rank() == root_rank
    plan: Any = _plan_of(sharded, state) if is_root else None
    plan = broadcast_object(
        plan, root_rank, name="scatter_state.plan", process_set=slices.process_set
    )
    if isinstance(plan, str):
        raise ValueError(f"scatter_state: {plan}")
    own: dict[int, dict[str, Any]] = {}
    for index, parameter, piece in entries_of(sharded):
        for key, (kind, value) in plan["state"].get(index, {}).items():
            if kind == _CUT:
                none = torch.empty(0, dtype=torch.float32, device="cpu")
                whole = state["state"][index][key] if is_root and state else none
                name = f"scatter_state.{index}.{key}"
                value = _scattered(whole.to(value), slices, parameter, root_rank, name)
            else:
                value = _copied(value)
            if kind == _CUT and piece is not None:
                value = value.view(piece.shape)
            if piece is not None or not slices.has_bucket(parameter):
                own.setdefault(index, {})[key] = value
    loaded = {"state": own, "param_groups": plan["param_groups"]}
    sharded._load_own(loaded)


@torch.no_grad()
def prepare_state(optimizer: torch.optim.Optimizer) -> None:
    """Gives an optimizer that has made no step its state, for `dcp.load` to load into.

    `torch.distributed.checkpoint` loads what `state_dict()` has, and that is nothing before the
    first step. The numbers mean nothing: load some. Parameters, and state that is there, stay as
    they are. Not collective.

    Args:
        optimizer: from ShardedOptimizer.

    Raises:
        TypeError: the optimizer is not sharded.
    """
    sharded, slices = _sharded("prepare_state", optimizer), _sharded_slices(optimizer)
    step = base_class(sharded).step
    for turn in slices.turns():
        pieces = [p for p in turn if not {*sharded.state.get(p.parameter, ())} - {MASTER}]
        before = []
        for piece in pieces:
            piece.follow()
            before.append(piece.trained.clone())
            piece.trained.grad = torch.zeros_like(piece.trained)
        with slices.in_place_of_parameters(sharded, pieces):
            # Without the hooks of users: for them this is no step.
            getattr(step, "__wrapped__", step)(sharded)
        for piece, values in zip(pieces, before, strict=True):
            piece.trained.copy_(values)
            piece.trained.grad = None


def in_slices(optimizer: ShardedSteps, state: Mapping[str, Any]) -> dict[str, Any]:
    """What `state_dict()` of the class returns, with a StateSlice for each part that was cut."""
    cut = dict(state["state"])
    for index, parameter, piece in entries_of(optimizer):
        if piece is not None and index in cut:
            start, count = piece.place.start, parameter.numel()
            cut[index] = {
                k: StateSlice(v, start, count) if is_per_element(k, v, piece.flat) else v
                for k, v in cut[index].items()
            }
    return {**state, "state": cut}


def shards_of(optimizer: ShardedSteps) -> dict[int, dict[str, Any]]:
    """By number of the parameter, what this rank has of it: name, shape, start and length."""
    return {
        index: {
            "name": piece.name,
            "shape": list(parameter.shape),
            "start": piece.place.start,
            "length": piece.place.length,
        }
        for index, parameter, piece in entries_of(optimizer)
        if piece is not None
    }


def loadable(optimizer: ShardedSteps, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with this rank's slices. Raises ValueError when it has others."""
    if "shards" in state:
        own = shards_of(optimizer)
        _expect_loaded_names(state["shards"], own)
        _expect_own_slices({i: s for i, s in state["shards"].items() if type(i) is int}, own)
        rest = {key: value for key, value in state.items() if key != "shards"}
        return {**rest, "state": _without_slices(state["state"])}
    if differences := _differences(optimizer, state["state"]):
        raise ValueError(f"load_state_dict: {differences}")
    cut = {}
    for index, parameter, piece in entries_of(optimizer):
        values = state["state"].get(index)
        if values is None:
            continue
        if piece is not None:
            cut[index] = cut_state(values, parameter, piece)
        elif not optimizer._slices.has_bucket(parameter):
            cut[index] = values
    return {**state, "state": cut}


def _without_slices(state: Mapping[Any, Any]) -> dict[int, dict[str, Any]]:
    """By number of the parameter, ordinary tensors, and what `dcp.load` has put beside them."""
    plain: dict[int, dict[str, Any]] = {}
    for index, values in state.items():
        parts = {k: v.local if isinstance(v, StateSlice) else v for k, v in values.items()}
        plain.setdefault(int(index), {}).update(parts)
    return plain


def _expect_loaded_names(shards: Mapping[Any, Any], own: Mapping[int, Any]) -> None:
    """`dcp.load` adds what the checkpoint has, under numbers that are texts."""
    for index, loaded in shards.items():
        shard = own.get(int(index)) if isinstance(index, str) else None
        if shard is not None and any(loaded[key] != shard[key] for key in ("name", "shape")):
            raise ValueError(
                f"load_state_dict: parameter {index} is '{loaded['name']}' of the shape "
                f"{loaded['shape']} in the checkpoint, and '{shard['name']}' of the shape "
                f"{shard['shape']} here; the optimizer must have the same parameters in the same "
                "order. mydist.Checkpoint(sharded=True) finds them by name"
            )


def _expect_own_slices(saved: Mapping[int, Any], own: Mapping[int, Any]) -> None:
    for index in sorted({*saved, *own}):
        before, now = saved.get(index), own.get(index)
        if before != now:
            name = (before or now or {})["name"]
            raise ValueError(
                f"load_state_dict: the saved slice of '{name}' is {_text(before)}, and this rank "
                f"owns {_text(now)}. Slices fit the rank, the number of ranks and the model that "
                "saved them; for others save mydist.gather_state() and load it with "
                "mydist.scatter_state()"
            )


def _text(shard: Mapping[str, Any] | None) -> str:
    if shard is None:
        return "nothing"
    end = shard["start"] + shard["length"]
    return f"elements {shard['start']} to {end} of the shape {shard['shape']}"


def entries_of(optimizer: ShardedSteps) -> list[tuple[int, torch.Tensor, OwnPiece | None]]:
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [(i, p, optimizer._slices.piece_of(p)) for i, p in enumerate(parameters)]


def _described(
    key: str, value: Any, parameter: torch.Tensor, piece: OwnPiece | None
) -> tuple[str, Any]:
    like = parameter if piece is None else piece.flat
    if is_per_element(key, value, like):
        return _CUT, value.dtype
    return "whole", value


def _plan_of(optimizer: ShardedSteps, state: Mapping[str, Any] | None) -> Any:
    """What the other ranks have to know; or a text that says what is wrong with the state."""
    if not isinstance(state, Mapping) or "state" not in state or "param_groups" not in state:
        return "the root has no state; expected the result of gather_state() or state_dict()"
    if "shards" in state:
        return "the state has the slices of one rank; expected the result of gather_state()"
    if differences := _differences(optimizer, state["state"]):
        return differences
    plan: dict[int, dict[str, tuple[str, Any]]] = {}
    for index, parameter, _ in entries_of(optimizer):
        values = state["state"].get(index, {})
        plan[index] = {}
        for key, value in values.items():
            if optimizer._slices.has_bucket(parameter) and is_per_element(key, value, parameter):
                plan[index][key] = _CUT, value.dtype
            else:
                plan[index][key] = "whole", value
    return {"state": plan, "param_groups": state["param_groups"]}


def _differences(optimizer: ShardedSteps, state: Mapping[int, Mapping[str, Any]]) -> str:
    """Where a whole state has other shapes than the parameters; empty if nowhere.

    Of whole parameters it may have any, as Adafactor's.
    """
    if optimizer._slices.by_parameter:
        return ""
    found = [
        f"the state '{key}' of parameter '{optimizer._name_of(parameter)}' has the shape "
        f"{list(value.shape)}, expected {list(parameter.shape)}"
        for index, parameter, _ in entries_of(optimizer)
        for key, value in state.get(index, {}).items()
        if isinstance(value, torch.Tensor) and value.numel() != 1 and value.shape != parameter.shape
    ]
    more = f"; and {len(found) - 10} more" if len(found) > 10 else ""
    return "; ".join(found[:10]) + more


def _copied(value: Any) -> Any:
    """Not to be changed by the next step of the optimizer that it came from."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _scattered(
    whole: torch.Tensor, slices: Slices, parameter: torch.Tensor, root_rank: int, name: str
) -> torch.Tensor:
    lengths = slices.lengths_of(parameter)
    return scatter(
        whole.reshape(-1).to(parameter.device),
        lengths,
        root_rank,
        name=name,
        process_set=slices.process_set,
    )


def _sharded(call: str, optimizer: Any) -> ShardedSteps:
    if not getattr(optimizer, "_cuts_state", False):
        raise wrong_type(f"{call}: optimizer", optimizer, "what ShardedOptimizer returned")
    return cast("ShardedSteps", optimizer)


def _sharded_slices(optimizer: Any) -> Slices:
    return cast(Slices, optimizer._slices)


def _check_root(call: str, root_rank: Any, slices: Slices) -> None:
    ranks = slices.process_set.ranks
    if check_int(call, "root_rank", root_rank) not in ranks:
        raise ValueError(f"{call}: root_rank is {root_rank}, expected one of the ranks {ranks}")
