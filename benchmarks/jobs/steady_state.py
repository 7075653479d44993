"""A9: what equal training steps cost in control messages, and what an idle job costs in wake-ups.

    mydistrun -np 2 python -m benchmarks.jobs.steady_state FILE

Counted by mydist itself; the worst rank counts. The wake-ups of a step have no target: gradients
are submitted by a thread that does not wait, so that the engine's is woken, two to four times in a
step of the model used here, more or less often depending on what else runs.
"""

from __future__ import annotations

import time

import torch

import mydist as md
from benchmarks.jobs.figures import JobArguments, parse_arguments, run_job
from mydist.bench.models import make_workload

_WARM_UPS = 30
_IDLE_SECONDS = 1.0


def train(steps: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Steps that are all alike."""
    inputs = torch.ones(2, 1, 28, 28)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.autograd.backward(model(inputs).sum())
        optimizer.step()


def measure(arguments: JobArguments) -> dict[str, float]:
    """Messages per step, wake-ups while nobody did anything for a second."""
    steps = arguments.pick(100, 5)
    model = make_workload("conv", 2, md.rank()).model
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), named_parameters=model.named_parameters()
    )
    train(_WARM_UPS, model, optimizer)
    before = md.stats()
    train(steps, model, optimizer)
    # Before the last step: until it is made no rank can go on to something else.
    busy = md.stats()
    train(1, model, optimizer)
    # Both ranks have come here when the barrier ends; what it still does takes microseconds.
    md.barrier()
    time.sleep(0.05)
    start = md.stats()
    time.sleep(_IDLE_SECONDS)
    end = md.stats()
    wakeups = "idle_wakeups" if "idle_wakeups" in end else "wakeups"
    mine = [
        (busy["control_messages_sent"] - before["control_messages_sent"]) / steps,
        (busy["wakeups"] - before["wakeups"]) / steps,
        (end[wakeups] - start[wakeups]) / _IDLE_SECONDS,
    ]
    worst = md.allreduce(torch.tensor(mine, dtype=torch.float64), op=md.Max, name="worst").tolist()
    names = ("messages_per_step", "wakeups_per_step", "idle_wakeups")
    return dict(zip(names, worst, strict=True))


def main() -> None:
    """Measures and writes the figures."""
    arguments = parse_arguments()
    run_job(arguments, measure)


if __name__ == "__main__":
    main()
