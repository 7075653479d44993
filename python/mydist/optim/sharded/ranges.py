"""Ranges: the state of parameters by name and offset, so that other slices can be cut from it.

What a rank saves is one range of each parameter. Another job cuts at other places: each of its
pieces is put together from the ranges that overlap it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..gradient_names import parameters_of
from .sharded_state import entries_of
from .slices import is_per_element
from .steps import ShardedSteps

# By name: where the range begins, how long it is, and its state.
Ranges = dict[str, dict[str, Any]]


@dataclass(frozen=True)
class Wanted:
    """A piece of a parameter that some optimizer has; `index` numbers its parameters."""

    index: int
    name: str
    start: int
    length: int
    shape: Sequence[int]  # Of state with one number for each element.


def own_ranges(optimizer: ShardedSteps) -> Ranges:
    """This rank's state, as plain values and flat tensors. Not collective."""
    ranges: Ranges = {}
    for _, parameter, piece in entries_of(optimizer):
        if piece is None or parameter not in optimizer.state:
            continue
        cut: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for key, value in optimizer.state[parameter].items():
            if is_per_element(key, value, piece.flat):
                cut[key] = value.reshape(-1)
            else:
                others[key] = value
        place = {"start": piece.place.start, "length": piece.place.length}
        ranges[piece.name] = {**place, "cut": cut, "others": others}
    return ranges


def plan_of(optimizer: ShardedSteps) -> dict[str, Any]:
    """What all ranks have alike: groups, and names and shapes of the parameters in order."""
    names = optimizer._distribution.names.of(optimizer)
    return {
        "param_groups": optimizer._whole_state_dict()["param_groups"],
        "parameters": [[name, list(parameter.shape)] for parameter, name in names],
    }


def load_ranges(
    optimizer: torch.optim.Optimizer, plan: Mapping[str, Any], saved: Sequence[Ranges]
) -> None:
    """Gives an optimizer, sharded or not, its part of what several ranks have saved.

    Raises ValueError that lists the differences when the parameters are others, or when a part of
    the state is in no range.
    """
    saved_names = [name for name, _ in plan["parameters"]]
    if isinstance(optimizer, ShardedSteps):
        own = [(name, list(p.shape)) for p, name in optimizer._distribution.names.of(optimizer)]
        wanted = [
            Wanted(index, piece.name, piece.place.start, piece.place.length, piece.shape)
            for index, _, piece in entries_of(optimizer)
            if piece is not None
        ]
    else:
        parameters = parameters_of(optimizer)
        # A plain optimizer knows no names: they are those of the same places.
        names = saved_names + [f"number {i}" for i in range(len(saved_names), len(parameters))]
        own = [(name, list(p.shape)) for p, name in zip(parameters, names, strict=False)]
        wanted = [Wanted(i, names[i], 0, p.numel(), p.shape) for i, p in enumerate(parameters)]
    _expect_same(dict(plan["parameters"]), dict(own))
    state = {}
    for piece in wanted:
        found = _assembled(piece, [r[piece.name] for r in saved if piece.name in r])
        if found:
            state[piece.index] = found
    groups = _with_own_numbers(plan["param_groups"], optimizer)
    if isinstance(optimizer, ShardedSteps):
        optimizer._load_own({"state": state, "param_groups": groups})
    else:
        optimizer.load_state_dict({"state": state, "param_groups": groups})


def _assembled(piece: Wanted, ranges: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """The state of a piece, from the ranges of its parameter."""
    state: dict[str, Any] = {}
    cut: dict[str, torch.Tensor] = {}
    filled = 0
    for saved in ranges:
        low = max(piece.start, saved["start"])
        high = min(piece.start + piece.length, saved["start"] + saved["length"])
        if low >= high:
            continue
        filled += high - low
        for key, value in saved["cut"].items():
            target = cut.setdefault(
                key, torch.empty(piece.length, dtype=value.dtype, device=value.device)
            )
            part = value[low - saved["start"] : high - saved["start"]]
            target[low - piece.start : high - piece.start].copy_(part)
        for key, value in saved["others"].items():
            state[key] = value.clone() if isinstance(value, torch.Tensor) else value
    state.update({key: value.view(tuple(piece.shape)) for key, value in cut.items()})
    if state and filled != piece.length:
        raise ValueError(
            f"the state of parameter '{piece.name}' has {filled} of the {piece.length} elements "
            f"from {piece.start} on; a rank's file is missing"
        )
    return state


def _with_own_numbers(
    groups: Sequence[Mapping[str, Any]], optimizer: torch.optim.Optimizer
) -> list[dict[str, Any]]:
    counts = [len(group["params"]) for group in optimizer.param_groups]
    first, own = 0, []
    for group, count in zip(groups, counts, strict=False):
        if len(group["params"]) != count:
            break
        own.append({**group, "params": list(range(first, first + count))})
        first += count
    if len(own) != len(counts) or len(own) != len(groups):
        saved = [len(group["params"]) for group in groups]
        raise ValueError(
            f"the parameter groups have {saved} parameters in the checkpoint and {counts} here"
        )
    return own


def _expect_same(saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    differences = []
    for name in [*saved, *(name for name in own if name not in saved)]:
        before, now = saved.get(name), own.get(name)
        if before is None:
            differences.append(f"'{name}' is not in the checkpoint")
        elif now is None:
            differences.append(f"'{name}' is not in the model")
        elif list(before) != list(now):
            differences.append(f"'{name}' has the shape {before} there and {now} here")
    if differences:
        more = f", and {len(differences) - 10} more" if len(differences) > 10 else ""
        raise ValueError(f"the parameters differ: {'; '.join(differences[:10])}{more}")
