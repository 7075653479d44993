"""The shapes of ResNet-50's parameters."""

from __future__ import annotations

import torch

from mydist.bench.models import resnet50


def parameter_shapes() -> list[tuple[int, ...]]:
    """In the order of the network: 161 shapes, 25,557,032 elements."""
    with torch.device("meta"):
        return [tuple(parameter.shape) for parameter in resnet50().parameters()]
