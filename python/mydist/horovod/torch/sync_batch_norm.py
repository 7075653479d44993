"""`horovod.torch.sync_batch_norm`: statistics of a batch over all ranks, for inputs on a GPU."""

from __future__ import annotations

import torch

from ...training.sync_batch_norm import SyncBatchNorm as OwnSyncBatchNorm

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(OwnSyncBatchNorm):
    """mydist.SyncBatchNorm that refuses inputs on the CPU, as Horovod's does."""

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
    ) -> None:
        """See torch.nn.BatchNorm1d."""
        super().__init__(num_features, eps, momentum, affine, track_running_stats)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Raises ValueError for an input on the CPU."""
        if not input.is_cuda:
            raise ValueError("SyncBatchNorm expected input tensor to be on GPU")
        return super().forward(input)
