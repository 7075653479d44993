"""A14: what the timeline costs a training step.

    mydistrun -np 2 python -m benchmarks.jobs.timeline_cost FILE

Rounds with and without it take turns; mydist's own counters are always on.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

import mydist as md
from benchmarks.jobs.figures import JobArguments, parse_arguments, write_figures
from mydist.bench.contest import Stopwatch, share
from mydist.bench.models import make_workload
from mydist.bench.results import Measured, median

_WARM_UPS = 3


def measure(arguments: JobArguments, folder: Path) -> dict[str, float]:
    """Median microseconds per step without and with, and the difference in percent."""
    workload = make_workload("conv", 8, md.rank())
    model = workload.model
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.001), named_parameters=model.named_parameters()
    )

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(workload.inputs), workload.labels)
        torch.autograd.backward(loss)
        optimizer.step()
        return loss

    found = {"off": Measured(), "on": Measured()}
    rounds, steps = arguments.pick(10, 1), arguments.pick(40, 2)
    for index in range(rounds):
        # Each goes first equally often.
        for name in ("off", "on") if index % 2 == 0 else ("on", "off"):
            if name == "on":
                md.start_timeline(str(folder / f"timeline{index}.json"))
            watch = Stopwatch()
            for number in range(_WARM_UPS + steps):
                if number == _WARM_UPS:
                    watch = Stopwatch()
                watch.time(step)
            found[name].add(share(watch.measured))
            if name == "on":
                md.stop_timeline()
    off, on = median(found["off"].times_us), median(found["on"].times_us)
    return {"off_us": off, "on_us": on, "slower_percent": 100 * (on / off - 1)}


def main() -> None:
    """Measures and writes the figures."""
    arguments = parse_arguments()
    md.init()
    with tempfile.TemporaryDirectory(prefix="mydist-bench-") as folder:
        write_figures(arguments, measure(arguments, Path(folder)))
    md.shutdown()


if __name__ == "__main__":
    main()
