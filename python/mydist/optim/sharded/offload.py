"""Offload: the state and the update of parameters on a GPU are on the CPU."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def leaves_for_cpu(device: torch.device) -> bool:
    """Whether there is anything to gain."""
    return device.type != "cpu"


def on_device(
    gradients: Sequence[torch.Tensor | None], like: Sequence[torch.Tensor]
) -> list[torch.Tensor | None]:
    """Each gradient with the device and dtype of a tensor. Copies from a GPU overlap."""
    moved: list[torch.Tensor | None] = []
    waits: set[torch.cuda.Stream] = set()
    for gradient, wanted in zip(gradients, like, strict=True):
        if gradient is not None and gradient.is_cuda and wanted.device.type == "cpu":
            # torch keeps pinned memory for the next copy.
            waits.add(torch.cuda.current_stream(gradient.device))
            pinned = torch.empty_like(gradient, device="cpu", pin_memory=True)
            gradient = pinned.copy_(gradient, non_blocking=True)
        moved.append(gradient)
    for stream in waits:
        stream.synchronize()
    return [
        None if gradient is None else gradient.to(wanted.device, wanted.dtype)
        for gradient, wanted in zip(moved, like, strict=True)
    ]
