"""AdamW(fused=True) by mydist's kernel, which gives a slice the bits that the whole would get."""

from __future__ import annotations

from numbers import Real
from typing import Any

import torch

from ... import _C
from ..wrapping import base_class

_MOMENTS = ("exp_avg", "exp_avg_sq")
_Settings = tuple[float, float, float, float, float]


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
    """One step of all groups; the state is that of torch's class.

    Raises before it changes anything: TypeError for a setting that is no number, ValueError for a
    state that does not fit its parameter.
    """
    calls = [call for group in optimizer.param_groups for call in _calls_of(optimizer, group)]
    for state, parameter, settings in calls:
        state["step"] += 1
        gradient = parameter.grad.contiguous()
        first, second = (state[key] for key in _MOMENTS)
        _C.adamw_(parameter, gradient, first, second, int(state["step"]), *settings)


def _calls_of(
    optimizer: torch.optim.Optimizer, group: dict[str, Any]
) -> list[tuple[dict[str, Any], Any, _Settings]]:
    """For each parameter with a gradient: its state, itself, and the settings of its group."""
    numbers = [group["lr"], *group["betas"], group["eps"], group["weight_decay"]]
    for number in numbers:
        if not isinstance(number, Real):
            raise TypeError(f"AdamW: a setting is {number!r}, expected a number")
    calls = []
    for parameter in group["params"]:
        if parameter.grad is None:
            continue
        state = optimizer.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
            for key in _MOMENTS:
                state[key] = torch.zeros_like(parameter)
        for key in _MOMENTS:
            moment = state[key]
            if moment.dtype != torch.float32 or moment.shape != parameter.shape:
                raise ValueError(
                    f"AdamW: the state '{key}' is {moment.dtype} of the shape "
                    f"{list(moment.shape)}, expected torch.float32 and {list(parameter.shape)}"
                )
        lr, beta1, beta2, eps, weight_decay = map(float, numbers)
        calls.append((state, parameter, (lr, beta1, beta2, eps, weight_decay)))
    return calls
