"""`horovod.torch.elastic.sampler`."""

from __future__ import annotations

from ....elastic import ElasticSampler

__all__ = ["ElasticSampler"]
