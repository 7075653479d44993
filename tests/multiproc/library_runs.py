"""What programs of other libraries train on, and what they leave for the test to compare."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import mydist.c10d  # noqa: F401  (registers the backend)

BACKEND, FOLDER = sys.argv[1:3]


def digits() -> tuple[TensorDataset, TensorDataset]:
    """1,500 images of 8 x 8 pixels to train with, and 297 others."""
    images, labels = load_digits(return_X_y=True)
    pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    numbers = torch.tensor(labels)
    return TensorDataset(pixels[:1500], numbers[:1500]), TensorDataset(
        pixels[1500:], numbers[1500:]
    )


def make_model() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)
    )


def leave(model: nn.Module, score: float) -> None:
    """Writes this rank's weights, a score, and which backend has carried them."""
    world = dist.group.WORLD
    assert world is not None
    results = {
        "backend": world._get_backend(torch.device("cpu")).name(),
        "score": score,
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
    }
    torch.save(results, Path(FOLDER) / f"rank{dist.get_rank()}.pt")
