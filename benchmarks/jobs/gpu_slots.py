"""G2: what a step adds where gradients on a GPU are views of one tensor, and reduced there.

The gradients of ResNet-50 with `zero_grad(set_to_none=False)`: backward adds to those that are
there. From the second step on it is counted what was copied to the slots, what was packed, and,
under torch's profiler, what was put on the GPU. The same step of plain torch next to it tells what
of that is torch's own; of the rest, NCCL may have one launch for each bucket. The gradients have to
be the averages, side by side, and the rank with the most counts. Two ranks share the GPU, and
reduce over NCCL, or there are no figures.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

import mydist as md
from mydist.bench.devices import synchronize

from .gradients import InSlots, Plain, shapes_for
from .job import Figures, JobArguments, do_without_sharing, most_of_any_rank
from .profiled import Blind, Work, profile_calls


def run_step(trainee: Plain, given: Sequence[torch.Tensor]) -> None:
    """All of a step but that of the optimizer; returns while the device works."""
    trainee.backward(trainee.forward(kept=True), given)


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

    return profile_calls(fill, partial(run_step, trainee, given), count, device)


def measure(arguments: JobArguments) -> Figures:
    """Bytes and launches per step, extra ones per bucket; nothing without NCCL for two on a GPU."""
    device = arguments.device
    shapes = shapes_for(arguments)
    given = [torch.full(shape, md.rank() + 1.0, device=device) for shape in shapes]
    ours, plain = InSlots(shapes, device), Plain(shapes, device)
    for trainee in (ours, plain):
        run_step(trainee, [gradient.clone() for gradient in given])  # Autograd may keep these.
    if do_without_sharing(device):
        return {}
    copied, packed = ours.copied_bytes(), md.stats()["pack_bytes"]
    warm_ups, count = arguments.pick(5, 1), arguments.pick(10, 2)
    for _ in range(warm_ups):
        for trainee in (ours, plain):
            run_step(trainee, given)
    of_torch, of_both = (profile_steps(trainee, given, count) for trainee in (plain, ours))
    plain.check(md.rank() + 1)
    ours.check((md.size() + 1) / 2)
    ours.check_places()
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
