"""`horovod.torch.sync_batch_norm`: statistics of a batch over all ranks."""

from __future__ import annotations

from ...training.sync_batch_norm import SyncBatchNorm as OwnSyncBatchNorm

__all__ = ["SyncBatchNorm"]


class SyncBatchNorm(OwnSyncBatchNorm):
    """mydist.SyncBatchNorm with Horovod's arguments.

    Inputs may be on the CPU, which Horovod refuses. So its synthetic benchmark runs there.
    """

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
