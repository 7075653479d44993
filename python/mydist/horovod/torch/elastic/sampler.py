"""`horovod.torch.elastic.sampler`."""

from __future__ import annotations

from typing import Any

import torch

from .unavailable import unavailable

__all__ = ["ElasticSampler"]


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Cannot be made: mydist has no elastic jobs yet."""

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        """Raises NotImplementedError."""
        raise unavailable("ElasticSampler")
