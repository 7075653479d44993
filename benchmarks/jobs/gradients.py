"""A7: the gradients of ResNet-50 through the torch API, next to DistributedDataParallel over Gloo.

There is no network: a backward pass gives every parameter a gradient that was made before, so what
a pass takes beyond the same without any exchange is the time of communication. Both average; every
gradient is checked after every pass. Two races: with `zero_grad(set_to_none=True)`, where backward
hands its gradients over and each is copied to its slot, and with `False` ("kept"), where it adds
them to what lies there. Counted apart: bytes copied to the slots, and bytes packed to fuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mydist as md
from mydist import _C
from mydist.bench.contest import Stopwatch, share
from mydist.bench.implementations import Mydist, TorchGloo
from mydist.bench.models import resnet50
from mydist.bench.problem import WrongResult, offset
from mydist.bench.results import Measured

from .job import Figures, JobArguments, times

Shapes = Sequence[tuple[int, ...]]
_WARM_UPS = 3
_CPU = torch.device("cpu")


def shapes_for(arguments: JobArguments) -> Shapes:
    """Those of ResNet-50's parameters, in the order of the network; or a few."""
    if arguments.smoke:
        return [(64, 3, 7, 7), (64,), (10, 64)]
    with torch.device("meta"):
        return [tuple(parameter.shape) for parameter in resnet50().parameters()]


class _Parameters(nn.Module):
    """Nothing but parameters; forward gives a view of each, in order."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self) -> list[torch.Tensor]:
        """Tensors whose gradients are those of the parameters."""
        return [parameter.view_as(parameter) for parameter in self.all]


class Plain:
    """Parameters, and the gradients that backward gives them."""

    def __init__(self, shapes: Shapes, device: torch.device = _CPU) -> None:
        self.module: nn.Module = _Parameters(shapes).to(device)
        self.parameters = list(self.module.parameters())
        self.complete: Callable[[], object] = lambda: None

    def forward(self, kept: bool) -> list[torch.Tensor]:
        """What backward begins with."""
        self.module.zero_grad(set_to_none=not kept)
        outputs: list[torch.Tensor] = self.module()
        return outputs

    def backward(
        self, outputs: Sequence[torch.Tensor], given: Sequence[torch.Tensor]
    ) -> torch.Tensor:
        """Until all gradients are there; on a GPU the device may still work."""
        torch.autograd.backward(outputs, given)
        self.complete()
        return given[0]

    def check(self, expected: float) -> None:
        """Raises WrongResult unless all gradients have that value everywhere."""
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None or not bool(parameter.grad.eq(expected).all()):
                raise WrongResult(f"gradient {index} on rank {md.rank()} is not {expected}")

    def copied_bytes(self) -> int:
        """Of gradients, to slots or back, so far."""
        return 0


class InSlots(Plain):
    """Averaged over all ranks, in slots."""

    def __init__(self, shapes: Shapes, device: torch.device = _CPU) -> None:
        super().__init__(shapes, device)
        named = self.module.named_parameters()
        if md.size() > 1:
            plain = torch.optim.SGD(self.parameters, lr=0.0)
            wrapped = md.DistributedOptimizer(plain, named_parameters=named)
            self.complete = wrapped.synchronize
            self.reducer: _C.GradientReducer = wrapped._distribution.paths[0]
            self._zero = wrapped.zero_grad
        else:  # The optimizer of a rank alone has nothing to reduce.
            self.reducer = _C.GradientReducer(int(md.Average), 1.0, 1.0, 0, 1, 0)
            for name, parameter in named:
                self.reducer.add_parameter(parameter, name, "", 0)
            self.complete = self.reducer.synchronize
            self._zero = self.module.zero_grad

    def forward(self, kept: bool) -> list[torch.Tensor]:
        """See Plain."""
        self._zero(set_to_none=not kept)
        outputs: list[torch.Tensor] = self.module()
        return outputs

    def copied_bytes(self) -> int:
        """See Plain."""
        return self.reducer.copied_bytes()

    def check_places(self) -> None:
        """Raises WrongResult where gradients do not lie one after the other."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        places = sorted((g.data_ptr(), g.data_ptr() + g.nbytes) for g in gradients)
        if any(end != begin for (_, end), (begin, _) in zip(places, places[1:], strict=False)):
            raise WrongResult(f"gradients on rank {md.rank()} do not lie side by side in slots")


class OverDdp(Plain):
    """Averaged by DistributedDataParallel over Gloo."""

    def __init__(self, shapes: Shapes) -> None:
        super().__init__(shapes)
        TorchGloo(one_host=md.local_size() == md.size())
        self.module = DistributedDataParallel(self.module)


class _Race:
    """The contestants take turns; every mode of zero_grad is a race of its own."""

    def __init__(self, arguments: JobArguments) -> None:
        self.rounds, self.passes = arguments.pick(5, 1), arguments.pick(5, 2)
        shapes = shapes_for(arguments)
        self.field = {"alone": Plain(shapes), "mydist": InSlots(shapes), "ddp": OverDdp(shapes)}
        self.given = [torch.empty(shape) for shape in shapes]
        self.ranks = Mydist()

    def run(self, kept: bool) -> Figures:
        """Microseconds of each, medians beyond "alone", their ratio, bytes copied per pass."""
        found = {name: Measured() for name in self.field}
        copied = packed = 0
        for _ in range(self.rounds):
            for name, contestant in self.field.items():
                measured, of_slots, of_packing = self._round(contestant, name == "alone", kept)
                found[name].add(measured)
                copied, packed = copied + of_slots, packed + of_packing
        figures: Figures = {}
        for name, measured in found.items():
            figures |= times(name, measured)
        ours, theirs = (figures[f"{name}_us"] - figures["alone_us"] for name in ("mydist", "ddp"))
        figures |= {"mydist_beyond_us": ours, "ddp_beyond_us": theirs}
        figures["ratio"] = theirs / max(ours, 1.0)
        passes = self.rounds * self.passes
        return figures | {"copied_bytes": copied / passes, "pack_bytes": packed / passes}

    def _round(self, contestant: Plain, is_alone: bool, kept: bool) -> tuple[Measured, int, int]:
        """The times, and the bytes that mydist has copied to slots and packed meanwhile."""
        if kept:
            for parameter in contestant.parameters:
                parameter.grad = torch.zeros_like(parameter)
        watch = Stopwatch(_WARM_UPS)
        for index in range(_WARM_UPS + self.passes):
            if index == _WARM_UPS:
                before = (contestant.copied_bytes(), md.stats()["pack_bytes"])
            for gradient in self.given:
                gradient.fill_(offset(md.rank(), index))
            outputs = contestant.forward(kept)
            self.ranks.barrier()
            watch.time(partial(contestant.backward, outputs, self.given))
            offsets = [offset(rank, index) for rank in range(md.size())]
            contestant.check(offsets[md.rank()] if is_alone else sum(offsets) / md.size())
        copied = contestant.copied_bytes() - before[0]
        packed = md.stats()["pack_bytes"] - before[1] if isinstance(contestant, InSlots) else 0
        return share(watch.measured), copied, packed


def measure(arguments: JobArguments) -> Figures:
    """The figures of both races; those with kept gradients are named "kept_…"."""
    race = _Race(arguments)
    figures = race.run(kept=False)
    return figures | {f"kept_{name}": figure for name, figure in race.run(kept=True).items()}
