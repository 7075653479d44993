"""Part: a run of an optimizer's parameters as flat tensors, and their anchor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Any

import torch

from ...job.error_text import check_state

Tensors = list[torch.Tensor]


@dataclass(eq=False)
class Block:
    """Parameters that share a flat tensor: of one parameter group, dtype and device."""

    group: int  # Its index in the optimizer's param_groups.
    parameters: Tensors = field(default_factory=list)


class Part:
    """A run of the parameters and their anchor, the values on which all ranks agreed last.

    Flat tensors are one-dimensional, one per block of neighbours with the same parameter group,
    dtype and device. They have the dtype and device of the parameters.

    Attributes:
        anchor: flat tensors, the same on all ranks.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        """Takes the parameters as they are for the anchor; they are equal on all ranks."""
        self._blocks = list(blocks)
        self.anchor = self.read()
        self._kept: dict[str, Tensors] = {"anchor": self.anchor}

    def keep(self, name: str) -> Tensors:
        """Flat tensors of zeros that are saved with the anchor: a momentum, say."""
        self._kept[name] = [torch.zeros_like(flat) for flat in self.anchor]
        return self._kept[name]

    def read(self) -> Tensors:
        """Copies of the parameters, as flat tensors."""
        return [
            torch.cat([parameter.detach().reshape(-1) for parameter in block.parameters])
            for block in self._blocks
        ]

    def gradients(self) -> Tensors:
        """Copies of the gradients, as flat tensors; zeros where a parameter has none."""
        return [torch.cat([_gradient(p) for p in block.parameters]) for block in self._blocks]

    def change(self) -> Tensors:
        """The parameters minus the anchor, as new flat tensors."""
        return [now.sub_(then) for now, then in zip(self.read(), self.anchor, strict=True)]

    def write(self, flats: Sequence[torch.Tensor]) -> None:
        """Overwrites the parameters."""
        with torch.no_grad():
            for parameter, piece in zip(self.parameters, self.pieces(flats), strict=True):
                parameter.copy_(piece)

    def reset(self) -> None:
        """Puts the parameters back to the anchor."""
        self.write(self.anchor)

    def pieces(self, flats: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        """Views of flat tensors in the shapes of the parameters, in their order."""
        for block, flat in zip(self._blocks, flats, strict=True):
            sizes = [parameter.numel() for parameter in block.parameters]
            for parameter, piece in zip(block.parameters, torch.split(flat, sizes), strict=True):
                yield piece.view(parameter.shape)

    @property
    def parameters(self) -> Tensors:
        """In the order of the optimizer's groups."""
        return [parameter for block in self._blocks for parameter in block.parameters]

    @property
    def groups(self) -> list[int]:
        """Of each flat tensor, the index of its parameter group."""
        return [block.group for block in self._blocks]

    def shared(self) -> Tensors:
        """All that is equal on all ranks: the anchor and what `keep` has made."""
        return [flat for flats in self._kept.values() for flat in flats]

    def state_dict(self) -> dict[str, Tensors]:
        """Copies of `shared()`, by name."""
        return {name: [flat.clone() for flat in flats] for name, flats in self._kept.items()}

    def load_state_dict(self, state: dict[str, Tensors]) -> None:
        """Overwrites anchor and momenta. Raises ValueError for other shapes."""
        check_state("Part", state, self._kept)
        for name, flats in self._kept.items():
            saved, needed = ([tuple(flat.shape) for flat in own] for own in (state[name], flats))
            if saved != needed:
                raise ValueError(
                    f"load_state_dict: the saved {name} has flat tensors of shapes {saved}, but "
                    f"the parameters need {needed}; load the state into the same model and "
                    "parameter groups"
                )
        for name, flats in self._kept.items():
            for flat, value in zip(flats, state[name], strict=True):
                flat.copy_(value)


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    """Of one dimension; dense."""
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter).detach().reshape(-1)
    return (gradient.to_dense() if gradient.is_sparse else gradient).detach().reshape(-1)


def split(groups: Sequence[Mapping[str, Any]], count: int) -> list[Part]:
    """The parameters of the groups in `count` runs of neighbours, each of about as many elements.

    Raises ValueError when there are fewer parameters than parts, or one of them holds integers; one
    part may be empty.
    """
    members = [(index, p) for index, group in enumerate(groups) for p in group["params"]]
    for _, parameter in members:
        if not (parameter.is_floating_point() or parameter.is_complex()):
            raise ValueError(
                f"a parameter of the optimizer is of dtype {parameter.dtype}, which has no mean; "
                "leave it out of the optimizer"
            )
    if len(members) < count > 1:
        raise ValueError(
            f"the optimizer has {len(members)} parameters, expected at least {count}, one for each "
            "fragment; use fewer fragments"
        )
    return [Part(_blocks(members[start:end])) for start, end in _bounds(members, count)]


def _bounds(members: Sequence[tuple[int, torch.Tensor]], count: int) -> list[tuple[int, int]]:
    ends = list(accumulate(parameter.numel() for _, parameter in members))
    cuts = [0]
    for part in range(1, count):
        target = ends[-1] * part / count
        # At least one parameter for this part, and one for each that follows.
        first, last = cuts[-1] + 1, len(members) - (count - part)
        cuts.append(min(range(first, last + 1), key=lambda cut: abs(ends[cut - 1] - target)))
    return list(zip(cuts, [*cuts[1:], len(members)], strict=True))


def _blocks(members: Sequence[tuple[int, torch.Tensor]]) -> list[Block]:
    def key(member: tuple[int, torch.Tensor]) -> tuple[int, torch.dtype, torch.device]:
        return member[0], member[1].dtype, member[1].device

    runs = [list(run) for _, run in groupby(members, key)]
    return [Block(run[0][0], [parameter for _, parameter in run]) for run in runs]
