"""Devices: where a benchmark's tensors lie, and why there may be no GPU for them."""

from __future__ import annotations

import torch

import mydist as md

__all__ = ["synchronize", "why_no_gpu"]


def why_no_gpu() -> str:
    """Why tensors on a GPU cannot be used here; empty when they can."""
    if torch.version.cuda is None:
        return "this torch was built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no GPU"
    if not md.cuda_built():
        return "mydist was built without CUDA"
    return ""


def synchronize(device: torch.device) -> None:
    """Returns when what was put on the device is done; on the CPU it is."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
