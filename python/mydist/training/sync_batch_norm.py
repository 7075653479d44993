"""SyncBatchNorm: batch normalization over the batches of all ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from ..collectives.arguments import check_process_set
from ..job.names import with_kept_name
from ..job.process_set import ProcessSet, global_process_set
from .batch_statistics import BatchStatistics, gather_statistics, normalize

__all__ = ["SyncBatchNorm", "convert_sync_batchnorm"]


def _check_type(call: str, process_set: object) -> None:
    """The set may be added later, when the layer is used."""
    if not isinstance(process_set, ProcessSet):
        check_process_set(call, process_set)  # raises TypeError


class SyncBatchNorm(_BatchNorm):
    """torch.nn.BatchNorm1d/2d/3d whose statistics are those of the batches of all ranks together.

    Forward and backward equal one process with the whole batch. Ranks may have different numbers of
    rows, also none. float16 and bfloat16 batches are normalized in float32. Whenever statistics of
    the batch are used (in training, and always without running statistics) every rank of the set
    has to call it, and to run backward through it if one does. In eval mode with running statistics
    nothing is communicated. Second derivatives are refused with a RuntimeError.

    Layers are told apart by the order of their first calls, which has to be the same on all ranks;
    run them in several threads only after a first batch.

    Shapes: input (rows, num_features, …) with 2 to 5 or more dimensions; output the same.

    Raises, when called:
        ValueError: an input with less than 2 dimensions or another number of channels; in training,
            less than 2 values per channel over all ranks (raised on every rank); not initialized.
        TypeError: an input that is not floating point.
        MismatchError: the ranks' layers have different numbers of features.

    Source: Ioffe and Szegedy 2015, arXiv:1502.03167.
    """

    process_set: ProcessSet
    _call_name: str | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """A layer as torch.nn.BatchNorm2d(num_features, …) makes it.

        Args:
            num_features: number of channels, the second dimension of the input.
            eps: added to the variance.
            momentum: weight of the new batch in the running statistics; None: their plain average.
            affine: whether there are a weight and a bias per channel.
            track_running_stats: whether running statistics are kept for eval mode.
            process_set: the ranks whose batches are taken together.
        """
        _check_type("SyncBatchNorm", process_set)
        if num_features < 1:
            raise ValueError(f"SyncBatchNorm: num_features is {num_features}, expected at least 1")
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, device=device, dtype=dtype
        )
        self.process_set = process_set
        # Given by the first call that communicates, so that layers which only some ranks have, but
        # never train, do not shift the names of the others.
        self._call_name = None

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalized input, of its shape and dtype. See the class for shapes and errors."""
        self._check_input_dim(input)
        uses_running = not self.training and self.running_mean is not None
        if uses_running:
            return self._alone(input)
        set_id = check_process_set("SyncBatchNorm", self.process_set)
        if self.process_set.size() == 1:
            return self._alone(input)
        if self._call_name is None:
            self._call_name, statistics = with_kept_name(
                "sync_batch_norm", set_id, gather_statistics, input, self.process_set
            )
        else:
            statistics = gather_statistics(input, self.process_set, self._call_name)
        call = (self._call_name, self.process_set)
        if statistics.count == 1:
            raise ValueError(
                f"SyncBatchNorm: got 1 value per channel over all {self.process_set.size()} ranks "
                f"(this rank's input has shape {list(input.shape)}), expected more than 1 value "
                "per channel when training; use a larger batch, or call eval() on the module"
            )
        if self.training and self.track_running_stats:
            self._track(statistics)
        return normalize(input, (self.weight, self.bias), statistics, self.eps, call)

    def _alone(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = super().forward(input)
        return result

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(
                f"SyncBatchNorm: expected at least 2D input (got {input.dim()}D input); the shape "
                "is (rows, num_features, …)"
            )
        if input.shape[1] != self.num_features:
            raise ValueError(
                f"SyncBatchNorm: got {input.shape[1]} channels (shape {list(input.shape)}), "
                f"expected num_features={self.num_features} in the second dimension"
            )
        if not input.is_floating_point():
            raise TypeError(
                f"SyncBatchNorm: got an input of {input.dtype}, expected floating point; convert "
                "it with input.float()"
            )

    @torch.no_grad()
    def _track(self, statistics: BatchStatistics) -> None:
        """Moves the running statistics towards those of this batch, as torch does."""
        batches = self.num_batches_tracked
        if batches is not None:
            batches.add_(1)
        if statistics.count == 0:
            return
        weight: float | torch.Tensor | None = self.momentum
        if weight is None:
            # Where the count is: the host would have to wait for a GPU.
            weight = 0.0 if batches is None else batches.double().reciprocal()
        for running, new in (
            (self.running_mean, statistics.mean),
            (self.running_var, statistics.unbiased_variance()),
        ):
            if running is not None:
                running.copy_(running.to(new.dtype) * (1.0 - weight) + new * weight)

    def __getstate__(self) -> dict[str, Any]:
        # A copy is a layer of its own, which may be called at the same time.
        return self.__dict__ | {"_call_name": None}

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """See mydist.convert_sync_batchnorm()."""
        _check_type("convert_sync_batchnorm", process_set)
        if not isinstance(module, torch.nn.Module):
            raise TypeError(
                f"convert_sync_batchnorm: got {type(module).__qualname__}, expected a "
                "torch.nn.Module"
            )
        return cls._convert(module, process_set, {})

    @classmethod
    def _convert(
        cls,
        module: torch.nn.Module,
        process_set: ProcessSet,
        done: dict[torch.nn.Module, torch.nn.Module],
    ) -> torch.nn.Module:
        """`done`: old layer → new, so that a layer used in several places stays one."""
        if module in done:
            return done[module]
        done[module] = module
        if isinstance(module, _BatchNorm):
            done[module] = cls._from_batch_norm(module, process_set)
        for name, child in module._modules.items():
            if child is not None:
                done[module]._modules[name] = cls._convert(child, process_set, done)
        return done[module]

    @classmethod
    def _from_batch_norm(cls, layer: _BatchNorm, process_set: ProcessSet) -> SyncBatchNorm:
        if any(is_lazy(p) for p in layer.parameters()) or layer.num_features == 0:
            raise ValueError(
                f"convert_sync_batchnorm: {type(layer).__name__} does not know its number of "
                "features yet; pass one batch through the model, then convert it"
            )
        result = cls(
            layer.num_features,
            layer.eps,
            layer.momentum,
            layer.affine,
            layer.track_running_stats,
            process_set,
        )
        # The same tensors: optimizers made before keep working, device and dtype come along.
        result._parameters.update(layer._parameters)
        result._buffers.update(layer._buffers)
        result.training = layer.training
        if hasattr(layer, "qconfig"):
            result.qconfig = layer.qconfig
        return result


def convert_sync_batchnorm(
    module: torch.nn.Module, process_set: ProcessSet = global_process_set
) -> torch.nn.Module:
    """Replaces every batch normalization layer inside `module` by a SyncBatchNorm.

    The layers keep their parameters and running statistics (the same tensors, so dtype, device and
    optimizers made before stay valid), eps, momentum, training mode and qconfig.

    Args:
        module: any module; changed in place.
        process_set: the ranks whose batches are taken together.

    Returns:
        `module` itself, or the new layer when `module` is a batch normalization layer.

    Raises:
        TypeError: `module` is no Module, or `process_set` no ProcessSet.
        ValueError: a lazy layer that has not seen a batch yet.
    """
    return SyncBatchNorm.convert_sync_batchnorm(module, process_set)
