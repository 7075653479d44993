"""The units of a model: what stage 3 gathers and frees together."""

from __future__ import annotations

import torch


def unit_modules(model: torch.nn.Module) -> list[torch.nn.Module]:
    """The blocks of the model: the elements of its outermost ModuleLists, else its children."""
    blocks: list[torch.nn.Module] = []

    def visit(module: torch.nn.Module) -> None:
        for child in module.children():
            if isinstance(module, torch.nn.ModuleList):
                blocks.append(child)
            else:
                visit(child)

    visit(model)
    found = blocks or list(model.children())
    return [module for module in found if next(module.parameters(), None) is not None]


def units_of(model: torch.nn.Module) -> list[list[torch.Tensor]]:
    """The parameters of each unit; those that no unit has are the last. None appears twice."""
    seen: set[int] = set()
    units: list[list[torch.Tensor]] = []
    for module in [*unit_modules(model), model]:
        parameters: list[torch.Tensor] = [p for p in module.parameters() if id(p) not in seen]
        seen.update(map(id, parameters))
        if parameters:
            units.append(parameters)
    return units
