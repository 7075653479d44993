"""Trains a small network on scikit-learn's digits with each strategy; rank 0 prints accuracies."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

import mydist as md

STEPS, BATCH, RATE = 150, 32, 0.1

STRATEGIES: dict[str, tuple[md.Strategy | None, float]] = {
    "default": (None, RATE),
    "LocalSGD": (md.LocalSGD(8), RATE),
    "LocalSGD weighted": (md.LocalSGD(8, weighted=True), RATE),
    "LocalSGD once": (md.LocalSGD(None), RATE),
    "PostLocalSGD": (md.PostLocalSGD(8, start=50), RATE),
    "BlockMomentum": (md.BlockMomentum(8), RATE),
    "BlockMomentum nesterov": (md.BlockMomentum(8, nesterov=True), RATE),
    "SlowMo": (md.SlowMo(8), RATE),
    "DiLoCo": (md.DiLoCo(10), RATE),
    "DiLoCo streaming": (md.DiLoCo(10, fragments=2, delay=2, mix=0.5), RATE),
    "ElasticAveraging": (md.ElasticAveraging(10), RATE),
}


def network() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1, bias=False),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(128, 10),
    )


def accuracy(strategy: md.Strategy | None, rate: float, images: Any, labels: Any) -> float:
    """On every fifth image, after training on this rank's share of the others."""
    model = network()
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=rate, momentum=0.5),
        named_parameters=model.named_parameters(),
        named_buffers=model.named_buffers(),
        communication=strategy,
    )
    is_test = np.arange(len(images)) % 5 == 4
    own = np.flatnonzero(~is_test)[md.rank() :: md.size()]
    random = np.random.default_rng(md.rank())
    for _ in range(STEPS):
        rows = torch.from_numpy(random.choice(own, BATCH, replace=False))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(images[rows]), labels[rows]).backward()
        optimizer.count_samples(BATCH)
        optimizer.step()
    optimizer.finish()
    md.check_consistency(model)
    with torch.no_grad():
        found = model.eval()(images[is_test]).argmax(dim=1)
    return float((found == labels[is_test]).float().mean())


def main() -> None:
    torch.set_num_threads(1)
    md.init()
    digits = load_digits()
    images = torch.from_numpy(digits.images).float().unsqueeze(1) / 16
    labels = torch.from_numpy(digits.target)
    train = partial(accuracy, images=images, labels=labels)
    results = {name: train(*choice) for name, choice in STRATEGIES.items()}
    everyone = md.allgather_object(results)
    if md.rank() == 0:
        assert everyone.count(results) == md.size()
        print("ACCURACIES " + json.dumps(results), flush=True)
    md.shutdown()


if __name__ == "__main__":
    main()
