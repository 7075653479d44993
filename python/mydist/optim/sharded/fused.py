"""AdamW(fused=True) by mydist's kernel, which gives a slice the bits that the whole would get."""

from __future__ import annotations

from typing import Any

import torch

from ... import _C
from ..wrapping import base_class


def takes(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the kernel can do the step of this optimizer: fused AdamW of float32 on the CPU."""
    is_adamw = base_class(optimizer) is torch.optim.AdamW
    return is_adamw and all(map(_takes_group, optimizer.param_groups))


def _takes_group(group: dict[str, Any]) -> bool:
    is_plain = group.get("fused") and not (group["amsgrad"] or group["maximize"])
    numbers = (group["lr"], *group["betas"])
    return (
        bool(is_plain)
        and not any(isinstance(number, torch.Tensor) for number in numbers)
        and all(p.dtype == torch.float32 and p.device.type == "cpu" for p in group["params"])
    )


@torch.no_grad()
def step(optimizer: torch.optim.Optimizer) -> None:
    """One step of all groups; the state is that of torch's class."""
    for group in optimizer.param_groups:
        beta1, beta2 = group["betas"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            state = optimizer.state[parameter]
            if not state:
                state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
                state["exp_avg"] = torch.zeros_like(parameter)
                state["exp_avg_sq"] = torch.zeros_like(parameter)
            state["step"] += 1
            _C.adamw_(
                parameter,
                parameter.grad.contiguous(),
                state["exp_avg"],
                state["exp_avg_sq"],
                int(state["step"]),
                group["lr"],
                beta1,
                beta2,
                group["eps"],
                group["weight_decay"],
            )
