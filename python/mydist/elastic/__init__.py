"""Elastic training: ranks come and go, and every sample of an epoch counts once.

    state = md.elastic.TorchState(model=model, optimizer=optimizer, epoch=0)

    @md.elastic.run
    def train(state):
        …
        state.commit()

    train(state)

Started by `mydistrun --min-np 2 --max-np 8 …`. See docs/elastic.md.
"""

from __future__ import annotations

from .interrupt import HostsUpdatedInterrupt
from .run import run
from .sampler import ElasticSampler
from .state import TorchState

__all__ = ["ElasticSampler", "HostsUpdatedInterrupt", "TorchState", "run"]
