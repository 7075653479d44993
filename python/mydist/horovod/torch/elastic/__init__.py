"""`horovod.torch.elastic`: its three main names are those of `mydist.elastic`."""

from __future__ import annotations

from ....elastic import run
from .sampler import ElasticSampler
from .state import TorchState

__all__ = ["ElasticSampler", "TorchState", "run"]
