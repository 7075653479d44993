"""G5: what a job of one rank adds to a training step on a GPU.

    mydistrun -np 1 python -m benchmarks.jobs.gpu_overhead FILE --gpu

The same model is trained with the plain optimizer and with a DistributedOptimizer around it, in
pairs of turns of a few steps each; each goes first equally often. A turn ends when the GPU is done
with it: until then the host may run ahead, as it does in training. ResNet-50 keeps a GPU busy; the
small GPT is so small that the host is what takes the time, and shows most of what is added there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch

import mydist as md
from benchmarks.jobs.figures import JobArguments, parse_arguments, run_job
from benchmarks.jobs.recording_cost import Comparison
from mydist.bench.contest import Stopwatch
from mydist.bench.devices import synchronize
from mydist.bench.models import make_workload


class Trainee:
    """A model with its optimizer."""

    def __init__(self, model: str, batch: int, device: torch.device, distributed: bool) -> None:
        self._device = device
        self._workload = make_workload(model, batch, md.rank()).to(device)
        module = self._workload.model
        self._optimizer: torch.optim.Optimizer = torch.optim.SGD(
            module.parameters(), lr=0.001, momentum=0.9
        )
        if distributed:
            self._optimizer = md.DistributedOptimizer(
                self._optimizer, named_parameters=module.named_parameters()
            )

    def turn(self, steps: int) -> torch.Tensor:
        """So many training steps, until the device is done with them; the last loss."""
        for _ in range(steps):
            self._optimizer.zero_grad()
            output = self._workload.model(self._workload.inputs)
            loss = torch.nn.functional.cross_entropy(output, self._workload.labels)
            torch.autograd.backward(loss)
            self._optimizer.step()
        synchronize(self._device)
        return loss


@dataclass(frozen=True)
class Plan:
    """What is trained, for how long; a pair is two turns of so many steps."""

    model: str
    batch: int
    steps: int
    pairs: int
    warm_ups: int = 3  # Pairs: cuDNN tries its algorithms, momentum is allocated.


_PLANS = (Plan("resnet50", 32, 4, 40), Plan("gpt", 16, 20, 60))


def compare(plan: Plan, device: torch.device) -> Comparison:
    """Plain and wrapped, by turns."""
    both = (False, True)
    trainees = {wrapped: Trainee(plan.model, plan.batch, device, wrapped) for wrapped in both}
    comparison = Comparison()
    for pair in range(-plan.warm_ups, plan.pairs):
        taken = {}
        for wrapped in both if pair % 2 == 0 else both[::-1]:
            watch, trainee = Stopwatch(), trainees[wrapped]
            watch.time(partial(trainee.turn, plan.steps))
            taken[wrapped] = watch.measured
        if pair >= 0:
            comparison.add(taken[False], taken[True])
    return comparison


def measure(arguments: JobArguments) -> dict[str, float]:
    """Of both models: times of a turn, and by how many percent it is slower."""
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True
    figures: dict[str, float] = {}
    for usual in _PLANS:
        plan = Plan(usual.model, 1, 1, 1, 0) if arguments.smoke else usual
        figures |= compare(plan, arguments.device).figures(plan.model)
    return figures


def main() -> None:
    """Measures and writes the figures."""
    arguments = parse_arguments()
    run_job(arguments, measure)


if __name__ == "__main__":
    main()
