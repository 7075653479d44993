"""G2: what a step adds where gradients on a GPU are views of one tensor, and reduced there.

    mydistrun -np 1 python -m benchmarks.jobs.gpu_slots FILE --gpu
    mydistrun -np 2 python -m benchmarks.jobs.gpu_slots FILE --gpu

The gradients of ResNet-50 with `zero_grad(set_to_none=False)`: backward adds to those that are
there. The DistributedOptimizer of a rank alone has nothing to reduce, so the reducer that several
ranks have is used there. From the second step on it is counted what was copied to the slots, what
was packed, and, under torch's profiler, what was put on the GPU. The same step of plain torch next
to it tells what of that is torch's own; of the rest, NCCL may have one launch for each bucket. The
gradients have to be the averages, side by side, and the rank with the most counts. Two ranks share
the GPU, and reduce over NCCL, or there are no figures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

import mydist as md
from benchmarks.jobs.figures import JobArguments, parse_arguments, run_job
from benchmarks.jobs.gpu_sharing import do_without_sharing, most_of_any_rank, prepare_to_share
from benchmarks.jobs.gradients import Parameters
from benchmarks.jobs.profiled import Blind, Work, profile_calls
from benchmarks.jobs.resnet50 import parameter_shapes
from mydist import _C
from mydist.bench.devices import synchronize
from mydist.bench.problem import WrongResult

_SMOKE_SHAPES = [(64, 3, 7, 7), (64,), (10, 64)]


class Plain:
    """Parameters whose gradients torch makes in the first step and keeps."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], device: torch.device) -> None:
        self.module = Parameters(shapes).to(device)
        self.parameters = list(self.module.parameters())
        self.optimizer: torch.optim.Optimizer = torch.optim.SGD(self.parameters, lr=0.0)

    def step(self, given: Sequence[torch.Tensor]) -> None:
        """All of a step but that of the optimizer; returns while the device works."""
        self.optimizer.zero_grad(set_to_none=False)
        torch.autograd.backward(self.module(), given)

    def check(self, expected: float) -> None:
        """Raises WrongResult unless all gradients have that value everywhere."""
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None or not bool(parameter.grad.eq(expected).all()):
                raise WrongResult(f"gradient {index} on rank {md.rank()} is not {expected}")


class InSlots(Plain):
    """The same, with gradients that are averaged over all ranks, in slots."""

    def __init__(self, shapes: Sequence[tuple[int, ...]], device: torch.device) -> None:
        super().__init__(shapes, device)
        named = self.module.named_parameters()
        self._complete: Callable[[], object]
        if md.size() > 1:
            wrapped = md.DistributedOptimizer(self.optimizer, named_parameters=named)
            self.optimizer, self._complete = wrapped, wrapped.synchronize
            self.reducer: _C.GradientReducer = wrapped._distribution.path
        else:
            self.reducer = _C.GradientReducer(int(md.Average), 1.0, 1.0, 0, 1, 0)
            for name, parameter in named:
                self.reducer.add_parameter(parameter, name, "", 0)
            self._complete = self.reducer.synchronize

    def step(self, given: Sequence[torch.Tensor]) -> None:
        """See Plain."""
        super().step(given)
        self._complete()

    def check(self, expected: float) -> None:
        """See Plain; also raises WrongResult where they do not lie one after the other."""
        super().check(expected)
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        places = sorted((g.data_ptr(), g.data_ptr() + g.nbytes) for g in gradients)
        if any(end != begin for (_, end), (begin, _) in zip(places, places[1:], strict=False)):
            raise WrongResult(f"gradients on rank {md.rank()} do not lie side by side in slots")

    def copied_bytes(self) -> int:
        """Of gradients, to slots or back, so far."""
        return self.reducer.copied_bytes()


def extra_launches(plain: Work, ours: Work, buckets: int) -> float:
    """Per bucket, beyond those of plain torch and one of NCCL, of as many steps of both."""
    every = buckets * ours.calls
    return (ours.launches - plain.launches - min(ours.collectives, every)) / every


def check_sight(plain: Work, ours: Work, gradients: int, ranks: int) -> None:
    """Of as many steps of both on a GPU, each with so many gradients, on so many ranks.

    Raises:
        Blind: the profiler has missed some of what has to be there.
    """
    additions = plain.calls * gradients
    if plain.launches < additions:
        raise Blind(f"{plain.launches} launches seen of steps that add to {additions} gradients")
    if ours.launches < plain.launches + ours.collectives:
        more = f"{ours.launches} launches seen, {ours.collectives} of NCCL"
        raise Blind(f"{more}, where torch alone has {plain.launches}")
    if ranks > 1 and ours.collectives == 0:
        raise Blind("no launch of NCCL seen where it has reduced gradients")


def profile_steps(trainee: Plain, given: Sequence[torch.Tensor], count: int) -> Work:
    """Of so many steps, after some that were not counted."""
    device = given[0].device

    def fill() -> None:
        for gradient in given:
            gradient.fill_(md.rank() + 1)
        synchronize(device)

    return profile_calls(fill, partial(trainee.step, given), count, device)


def measure(arguments: JobArguments) -> dict[str, float]:
    """Bytes and launches per step, extra ones per bucket; nothing without NCCL for two on a GPU."""
    device = arguments.device
    shapes = _SMOKE_SHAPES if arguments.smoke else parameter_shapes()
    given = [torch.full(shape, md.rank() + 1.0, device=device) for shape in shapes]
    ours, plain = InSlots(shapes, device), Plain(shapes, device)
    for trainee in (ours, plain):
        trainee.step([gradient.clone() for gradient in given])  # Autograd may keep these.
    if do_without_sharing(device):
        return {}
    copied, packed = ours.copied_bytes(), md.stats()["pack_bytes"]
    warm_ups, count = arguments.pick(5, 1), arguments.pick(10, 2)
    for _ in range(warm_ups):
        for trainee in (ours, plain):
            trainee.step(given)
    of_torch, of_both = (profile_steps(trainee, given, count) for trainee in (plain, ours))
    plain.check(md.rank() + 1)
    ours.check((md.size() + 1) / 2)
    if device.type == "cuda":
        check_sight(of_torch, of_both, len(given), md.size())
    buckets, steps = len(ours.reducer.buckets()), warm_ups + count
    figures = {
        "ranks": float(md.size()),
        "buckets": float(buckets),
        "copied_bytes": (ours.copied_bytes() - copied) / steps,
        "pack_bytes": (md.stats()["pack_bytes"] - packed) / steps,
        "torch_launches": of_torch.launches / count,
        "launches": of_both.launches / count,
        "collectives": of_both.collectives / count,
        "extra_launches": extra_launches(of_torch, of_both, buckets),
    }
    return most_of_any_rank(figures)


def main() -> None:
    """Measures and writes the figures."""
    arguments = parse_arguments()
    prepare_to_share(arguments)
    run_job(arguments, measure)


if __name__ == "__main__":
    main()
