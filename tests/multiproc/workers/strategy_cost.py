"""What a local step of a strategy costs beside a plain one: prints "COST plain_ms percent".

Steps of both alternate, and each pair is compared. The CPU time of the whole process counts, which
other programs change little.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

import mydist as md

STEPS = 200


def model() -> torch.nn.Module:
    """A step of it takes 5 ms or more."""
    torch.manual_seed(0)
    layers: list[torch.nn.Module] = []
    for _ in range(8):
        layers += [torch.nn.Linear(256, 256), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers)


def one_step(network: torch.nn.Module, optimizer: Any, inputs: torch.Tensor) -> float:
    """Its milliseconds."""
    began = time.process_time()
    optimizer.zero_grad()
    network(inputs).pow(2).mean().backward()
    optimizer.step()
    return 1000 * (time.process_time() - began)


def main() -> None:
    md.init()
    torch.set_num_threads(1)
    plain, local = model(), model()
    optimizers: list[Any] = [
        torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9) for network in (plain, local)
    ]
    optimizers[1] = md.DistributedOptimizer(
        optimizers[1], named_parameters=local.named_parameters(), communication=md.LocalSGD(None)
    )
    inputs = torch.randn(256, 256)
    times: list[list[float]] = [[], []]
    for number in range(STEPS):
        order = (0, 1) if number % 2 else (1, 0)
        for which in order:
            network = (plain, local)[which]
            times[which].append(one_step(network, optimizers[which], inputs))
    more = [100 * (b / a - 1) for a, b in zip(*times, strict=True)]
    print(f"COST {statistics.median(times[0]):.2f} {statistics.median(more):.2f}", flush=True)
    md.shutdown()


if __name__ == "__main__":
    main()
