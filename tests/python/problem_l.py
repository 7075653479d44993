"""Problem "L": logistic regression that simulated workers learn in a second, in several trials.

2000 samples of 40 features, whose scales span a factor of 5.5. What counts is how far the loss is
above the least one; at the start it is 0.36.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from deep import deep

import mydist as md
from mydist.optim.strategies.simulation import SimulatedWorker, Simulation

SAMPLES, FEATURES, L2 = 2000, 40, 1e-3
WORKERS, BATCH = 8, 16
# How shards() can divide the samples.
LAYOUTS = ("iid", "sorted")
ASYNC = md.ps.Async()

every_seed = pytest.mark.parametrize("seeds", [3, deep(10)])

_random = np.random.default_rng(0)
_scale = np.logspace(0, -0.74, FEATURES)
X = _random.normal(size=(SAMPLES, FEATURES)) * _scale
_true = _random.normal(size=FEATURES) * 0.6 / _scale
Y = (_random.random(SAMPLES) < 1 / (1 + np.exp(-X @ _true))).astype(float)


def loss(weights: Any) -> Any:
    """Of one model, or of each row."""
    logits = weights @ X.T
    return np.mean(np.logaddexp(0, logits) - Y * logits, -1) + L2 / 2 * np.sum(weights**2, -1)


@cache
def least_loss() -> float:
    """By Newton's method."""
    w = np.zeros(FEATURES)
    for _ in range(50):
        p = 1 / (1 + np.exp(-X @ w))
        gradient = X.T @ (p - Y) / SAMPLES + L2 * w
        hessian = (X.T * (p * (1 - p))) @ X / SAMPLES + L2 * np.eye(FEATURES)
        w -= np.linalg.solve(hessian, gradient)
    return float(loss(w))


def excess(weights: Any) -> Any:
    """The loss above the least one."""
    return loss(weights) - least_loss()


def shards(layout: str, seed: int) -> list[Any]:
    """The samples of each worker: mixed ("iid"), or of one label if possible ("sorted")."""
    mixed = np.random.default_rng([1, seed]).permutation(SAMPLES)
    order = np.argsort(Y, kind="stable") if layout == "sorted" else mixed
    return np.array_split(order, WORKERS)


class Excess(NamedTuple):
    """The loss above the least one, in an array with an entry for each seed."""

    iid: Any
    sorted: Any
    alone: Any  # Of worker 0 before finish(), with mixed samples.


def train(strategy: md.Strategy, lr: float, steps: int, seeds: int, **options: Any) -> Excess:
    """SGD on eight workers, with these options.

    All trials are rows of one parameter, and do not see each other.
    """

    def program(worker: SimulatedWorker) -> tuple[Any, Any]:
        batches = torch.from_numpy(_batches(worker.rank, steps, seeds))
        weights = torch.zeros(2 * seeds, FEATURES, dtype=torch.float64, requires_grad=True)
        optimizer = worker.optimizer(torch.optim.SGD([weights], lr=lr, **options), strategy)
        x, y = torch.from_numpy(X), torch.from_numpy(Y)
        with torch.no_grad():
            for batch in batches:
                features, column = x[batch], weights.unsqueeze(2)
                wrong = torch.sigmoid(features.bmm(column)) - y[batch].unsqueeze(2)
                slope = features.transpose(1, 2).bmm(wrong) / BATCH
                weights.grad = (slope + L2 * column).squeeze(2)
                optimizer.step()
        alone = weights.detach().clone()
        optimizer.finish()
        return weights.detach().numpy(), alone.numpy()

    models, alone = Simulation(WORKERS).run(program)[0]
    return Excess(excess(models[:seeds]), excess(models[seeds:]), excess(alone[:seeds]))


def _batches(rank: int, steps: int, seeds: int) -> Any:
    """Indices of samples, by step, trial and place in the batch; mixed layouts come first."""
    trials = [(layout, seed) for layout in ("iid", "sorted") for seed in range(seeds)]
    of_trials = []
    for layout, seed in trials:
        own = shards(layout, seed)[rank]
        picks = np.random.default_rng([seed, rank]).integers(0, len(own), (steps, BATCH))
        of_trials.append(own[picks])
    return np.stack(of_trials, axis=1)


class Path(NamedTuple):
    """What there was after the steps of all workers, in the order of the virtual time."""

    seconds: Any  # Of each step.
    excess: Any  # The loss of its worker above the least one, by step and seed.


def path_of(
    rule: md.ps.Rule,
    updates: int,
    seeds: int,
    consistency: md.ps.Consistency = ASYNC,
    workers: int = WORKERS,
    batch: int = BATCH,
    step_seconds: Callable[[int, int], float] = lambda rank, step: 1.0,
    rate: Callable[[int], float] | None = None,
    since: float = 0.9,
) -> Path:
    """AsynchronousGradients with batches of all samples. All trials are rows of one parameter.

    updates: steps of all workers together.
    rate: the learning rate by the number of steps before it; worker 0 sets it.
    since: the part of the updates after which the path begins.
    """
    strategy = md.AsynchronousGradients(rule, consistency)
    taken, path = 0, []

    def program(worker: SimulatedWorker) -> None:
        nonlocal taken
        weights = torch.zeros(seeds, FEATURES, dtype=torch.float64, requires_grad=True)
        plain = torch.optim.SGD([weights], lr=getattr(rule, "lr", 1.0))
        optimizer = worker.optimizer(plain, strategy)
        x, y = torch.from_numpy(X), torch.from_numpy(Y)
        draws = [np.random.default_rng([2, seed, worker.rank]) for seed in range(seeds)]
        with torch.no_grad():
            while taken < updates:
                rows = torch.from_numpy(np.stack([d.integers(0, SAMPLES, batch) for d in draws]))
                features, column = x[rows], weights.unsqueeze(2)
                wrong = torch.sigmoid(features.bmm(column)) - y[rows].unsqueeze(2)
                slope = features.transpose(1, 2).bmm(wrong) / batch
                weights.grad = (slope + L2 * column).squeeze(2)
                if rate is not None and taken and worker.rank == 0:
                    optimizer.param_groups[0]["lr"] = rate(taken)
                optimizer.step()
                taken += 1
                if taken > since * updates:
                    path.append((worker.seconds, excess(weights.numpy())))

    Simulation(workers, step_seconds).run(program)
    seconds, losses = zip(*path, strict=True)
    return Path(np.array(seconds), np.array(losses))
