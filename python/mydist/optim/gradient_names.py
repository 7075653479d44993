"""GradientNames: which gradient is called what, and which gradients belong together.

Names identify gradients across ranks, so they depend only on what is equal on all ranks: the names
the user gave, or positions in the parameter groups.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch


def is_named(entry: Any) -> bool:
    """Whether it is a tuple of a name and one more item."""
    return isinstance(entry, tuple) and len(entry) == 2 and isinstance(entry[0], str)


def parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All parameters in the order of the groups; the same on all ranks."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class GradientNames:
    """The name of every parameter of an optimizer, checked once when the optimizer is wrapped."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        named_parameters: Iterable[tuple[str, torch.Tensor]] | None,
    ) -> None:
        """Raises ValueError for duplicate, malformed or missing names."""
        self._given: dict[int, str] = {}
        # Keeps the parameters of the table alive, so that an id() is never that of a new tensor.
        self._parameters: list[torch.Tensor] = []
        if named_parameters is None:
            return
        seen: set[str] = set()
        for name, parameter in _pairs(named_parameters):
            if name in seen:
                raise ValueError(
                    f"named_parameters contains the name '{name}' twice; names must be unique"
                )
            seen.add(name)
            self._given.setdefault(id(parameter), name)  # A tied parameter keeps its first name.
            self._parameters.append(parameter)
        missing = [
            f"{i}.{j}"
            for i, j, parameter in _positions(optimizer)
            if id(parameter) not in self._given
        ]
        if missing:
            raise ValueError(
                f"named_parameters does not name {len(missing)} of the optimizer's parameters "
                f"(group.position: {', '.join(missing[:10])}); pass model.named_parameters() of "
                "every model whose parameters the optimizer updates"
            )

    def of(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[torch.Tensor, str]]:
        """All parameters with their names, in the order of the groups."""
        for i, j, parameter in _positions(optimizer):
            given = self._given.get(id(parameter))
            if given is None:
                from_torch = optimizer.param_groups[i].get("param_names")
                given = from_torch[j] if from_torch else f"param_group.{i}.{j}"
            yield parameter, given


def parameter_groups(optimizer: torch.optim.Optimizer, groups: Any) -> list[list[torch.Tensor]]:
    """The `groups` argument of DistributedOptimizer as lists of parameters.

    It is None, the number of groups of about equal length, or such lists. Raises ValueError when it
    is none of these, names a parameter twice, or one that the optimizer does not have.
    """
    if groups is None:
        return []
    expected = "a number of groups of at least 1 or a list of lists of parameters"
    if isinstance(groups, int) and not isinstance(groups, bool):
        if groups < 1:
            raise ValueError(f"groups is {groups}, expected {expected}")
        everything = [p for _, _, p in _positions(optimizer)]
        return _split(everything, min(groups, len(everything)))
    if not isinstance(groups, (list, tuple)) or not all(
        isinstance(group, (list, tuple)) and all(isinstance(p, torch.Tensor) for p in group)
        for group in groups
    ):
        raise ValueError(f"groups is {type(groups).__name__}, expected {expected}")
    known = {id(p) for _, _, p in _positions(optimizer)}
    seen: dict[int, int] = {}
    for index, group in enumerate(groups):
        for parameter in group:
            shape = tuple(parameter.shape)
            if id(parameter) not in known:
                raise ValueError(
                    f"groups[{index}] contains a tensor of shape {shape} that is not a parameter "
                    "of the optimizer; list only parameters the optimizer updates"
                )
            if id(parameter) in seen:
                raise ValueError(
                    f"groups[{seen[id(parameter)]}] and groups[{index}] both contain a parameter "
                    f"of shape {shape}; a parameter belongs to one group"
                )
            seen[id(parameter)] = index
    return [list(group) for group in groups]


def _split(parameters: Sequence[torch.Tensor], count: int) -> list[list[torch.Tensor]]:
    """`count` runs of neighbours; the first ones get one more when it does not come out even."""
    length, extra = divmod(len(parameters), max(count, 1))
    bounds = [index * length + min(index, extra) for index in range(count + 1)]
    return [list(parameters[start:end]) for start, end in pairwise(bounds)]


def _positions(optimizer: torch.optim.Optimizer) -> Iterator[tuple[int, int, torch.Tensor]]:
    for i, group in enumerate(optimizer.param_groups):
        for j, parameter in enumerate(group["params"]):
            yield i, j, parameter


def _pairs(named_parameters: Iterable[Any]) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(named_parameters, Mapping) or not isinstance(named_parameters, Iterable):
        raise ValueError(
            f"named_parameters is {type(named_parameters).__name__}, expected pairs "
            "(name, parameter); pass model.named_parameters()"
        )
    for entry in named_parameters:
        if not is_named(entry) or not isinstance(entry[1], torch.Tensor):
            raise ValueError(
                f"named_parameters contains {type(entry).__name__}, expected pairs "
                "(name, parameter); pass model.named_parameters()"
            )
        yield entry
