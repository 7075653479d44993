"""Devices: where a benchmark's tensors lie, why there may be no GPU for them, and how ranks share
one."""

from __future__ import annotations

import torch

import mydist as md

FIRST_NCCL_TO_SHARE = 23003


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


def let_ranks_share_the_gpu(rank: str, version: int) -> dict[str, str]:
    """The variables that make NCCL of that version take two ranks on one GPU."""
    if version >= FIRST_NCCL_TO_SHARE:
        return {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "0"}
    return nccl_host_of(rank)


def nccl_host_of(rank: str) -> dict[str, str]:
    """The variable that makes NCCL take that rank for one on another host, with another GPU."""
    return {"NCCL_HOSTID": f"mydist-bench-{rank}"}
