"""A7: the gradients of ResNet-50 through the torch API, next to DistributedDataParallel over Gloo.

    mydistrun -np 2 python -m benchmarks.jobs.gradients FILE

There is no network: a backward pass gives every parameter a gradient that was made before, so what
a pass takes beyond the same without any exchange is the time of communication. Both average; every
gradient is checked after every pass. Two races: with `zero_grad(set_to_none=True)`, where backward
hands its gradients over and each is copied to its slot, and with `False` ("kept"), where it adds
them to what lies there. Counted apart: bytes copied to the slots, and bytes packed to fuse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mydist as md
from benchmarks.jobs.figures import JobArguments, parse_arguments, times, write_figures
from benchmarks.jobs.resnet50 import parameter_shapes
from mydist.bench.contest import Stopwatch, share
from mydist.bench.implementations import Mydist, TorchGloo, close_torch_gloo
from mydist.bench.problem import WrongResult, offset
from mydist.bench.results import Measured

_WARM_UPS = 3


class Moved(NamedTuple):
    """Bytes of gradients: copied to the slots or back, and packed to be reduced together."""

    copied: int
    packed: int


class Parameters(nn.Module):
    """Nothing but parameters; forward gives a view of each, in order."""

    def __init__(self, shapes: Sequence[tuple[int, ...]]) -> None:
        super().__init__()
        self.all = nn.ParameterList(nn.Parameter(torch.zeros(shape)) for shape in shapes)

    def forward(self) -> list[torch.Tensor]:
        """Tensors whose gradients are those of the parameters."""
        return [parameter.view_as(parameter) for parameter in self.all]


class Contestant:
    """Parameters, and how their gradients are exchanged."""

    def __init__(
        self,
        parameters: Parameters,
        forward: nn.Module,
        complete: Callable[[], object],
        zero: Callable[..., object],
        copied_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        self.parameters, self.forward = parameters, forward
        self.complete, self.zero = complete, zero
        self.copied_bytes = copied_bytes
        self._ranks = Mydist()

    def moved_bytes(self) -> Moved:
        """What mydist has copied so far."""
        return Moved(self.copied_bytes(), md.stats().get("pack_bytes", 0))

    def lay_zeros(self) -> None:
        """Gives every parameter a gradient of its own."""
        for parameter in self.parameters.all:
            parameter.grad = torch.zeros_like(parameter)

    def run_pass(self, gradients: Sequence[torch.Tensor], kept: bool, watch: Stopwatch) -> None:
        """Times backward until all gradients are there."""
        self.zero(set_to_none=not kept)
        outputs = self.forward()

        def backward() -> torch.Tensor:
            torch.autograd.backward(outputs, gradients)
            self.complete()
            return gradients[0]

        self._ranks.barrier()
        watch.time(backward)

    def check(self, expected: float, name: str) -> None:
        """Raises WrongResult unless all gradients have that value everywhere."""
        for index, parameter in enumerate(self.parameters.all):
            if parameter.grad is None or not bool(parameter.grad.eq(expected).all()):
                raise WrongResult(f"{name}: gradient {index} on rank {md.rank()} is not {expected}")


def contestants(shapes: Sequence[tuple[int, ...]]) -> dict[str, Contestant]:
    """Without an exchange, mydist, DDP."""
    alone, ours, theirs = (Parameters(shapes) for _ in range(3))
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(ours.parameters(), lr=0.0), named_parameters=ours.named_parameters()
    )
    TorchGloo(one_host=md.local_size() == md.size())
    parallel = DistributedDataParallel(theirs)

    def nothing() -> None:
        pass

    return {
        "alone": Contestant(alone, alone, nothing, alone.zero_grad),
        "mydist": Contestant(
            ours,
            ours,
            optimizer.synchronize,
            optimizer.zero_grad,
            optimizer._distribution.path.copied_bytes,
        ),
        "ddp": Contestant(theirs, parallel, nothing, parallel.zero_grad),
    }


class Race:
    """The contestants take turns; every mode of zero_grad is a race of its own."""

    def __init__(self, arguments: JobArguments, shapes: Sequence[tuple[int, ...]]) -> None:
        self.rounds, self.passes = arguments.pick(5, 1), arguments.pick(5, 2)
        self.field = contestants(shapes)
        self.gradients = [torch.empty(shape) for shape in shapes]

    def run(self, kept: bool) -> dict[str, float]:
        """Microseconds of each, medians beyond "alone", their ratio, bytes copied per pass."""
        found = {name: Measured() for name in self.field}
        copied = packed = 0
        for _ in range(self.rounds):
            for name in self.field:
                measured, moved = self._round(name, kept)
                found[name].add(measured)
                if name == "mydist":
                    copied, packed = copied + moved.copied, packed + moved.packed
        figures: dict[str, float] = {}
        for name, measured in found.items():
            figures |= times(name, measured)
        ours, theirs = (figures[f"{name}_us"] - figures["alone_us"] for name in ("mydist", "ddp"))
        figures |= {"mydist_beyond_us": ours, "ddp_beyond_us": theirs}
        figures["ratio"] = theirs / max(ours, 1.0)
        figures["copied_bytes"] = copied / (self.rounds * self.passes)
        if "pack_bytes" in md.stats():
            figures["pack_bytes"] = packed / (self.rounds * self.passes)
        return figures

    def _round(self, name: str, kept: bool) -> tuple[Measured, Moved]:
        """The times, and what mydist has copied meanwhile."""
        contestant = self.field[name]
        if kept:
            contestant.lay_zeros()
        watch, before = Stopwatch(), Moved(0, 0)
        for index in range(_WARM_UPS + self.passes):
            if index == _WARM_UPS:
                watch, before = Stopwatch(), contestant.moved_bytes()
            for gradient in self.gradients:
                gradient.fill_(offset(md.rank(), index))
            contestant.run_pass(self.gradients, kept, watch)
            offsets = [offset(rank, index) for rank in range(md.size())]
            average = sum(offsets) / md.size()
            contestant.check(offsets[md.rank()] if name == "alone" else average, name)
        after = contestant.moved_bytes()
        moved = Moved(after.copied - before.copied, after.packed - before.packed)
        return share(watch.measured), moved


def measure(arguments: JobArguments) -> dict[str, float]:
    """The figures of both races; those with kept gradients are named "kept_…"."""
    shapes = parameter_shapes() if not arguments.smoke else [(64, 3, 7, 7), (64,), (10, 64)]
    race = Race(arguments, shapes)
    figures = race.run(kept=False)
    return figures | {f"kept_{name}": figure for name, figure in race.run(kept=True).items()}


def main() -> None:
    """Measures and writes the figures."""
    arguments = parse_arguments()
    md.init()
    write_figures(arguments, measure(arguments))
    close_torch_gloo()
    md.shutdown()


if __name__ == "__main__":
    main()
