"""fully_shard(): stage 3, torch's FSDP2 on the backend "mydist"."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy
from torch.distributed.fsdp import fully_shard as shard_module

from ... import c10d
from ...job.error_text import wrong_type
from .units import unit_modules

__all__ = ["fully_shard"]


def fully_shard(
    model: torch.nn.Module,
    units: Callable[[torch.nn.Module], bool] | None = None,
    *,
    offload: str | None = None,
    mixed_precision: torch.dtype | None = None,
) -> Any:
    """Cuts parameters, gradients and state over all ranks (ZeRO, stage 3). Collective.

    Each unit gathers its parameters when it computes, and frees them again. This is torch's
    `torch.distributed.fsdp.fully_shard` over mydist, so all that is written for FSDP2 works on the
    result: `torch.nn.utils.clip_grad_norm_`, torch.distributed.checkpoint, `no_sync` as
    `set_requires_gradient_sync`. Make the optimizer after it, an ordinary one of torch. Needs no
    `md.init()`: without a process group it makes one, with a group of another backend a second one.

    Args:
        model: on the CPU or the meta device; the same on all ranks. It is changed in place.
        units: says of each module whether its parameters are gathered together. Default: the
            elements of the outermost ModuleLists, or the children if there is none.
        offload: None; "cpu" is not supported yet.
        mixed_precision: computes in this dtype; gradients are summed in float32.

    Returns:
        `model`, which is now also an FSDPModule.

    Raises:
        TypeError: an argument is of the wrong type.
        ValueError: the model is sharded already, or on a GPU; `units` chooses no module.
        DistBackendError: the ranks cannot connect.
    """
    if not isinstance(model, torch.nn.Module):
        raise wrong_type("fully_shard: model", model, "a torch.nn.Module")
    if offload is not None:
        raise ValueError(
            f"fully_shard: offload is {offload!r}, expected None: slices stay on the device of the "
            "model. torch.distributed.fsdp.fully_shard has CPUOffloadPolicy"
        )
    if mixed_precision is not None and not isinstance(mixed_precision, torch.dtype):
        raise wrong_type("fully_shard: mixed_precision", mixed_precision, "a torch.dtype or None")
    _check_model(model)
    chosen = _chosen_units(model, units)
    policy = MixedPrecisionPolicy()
    if mixed_precision is not None:
        policy = MixedPrecisionPolicy(param_dtype=mixed_precision, reduce_dtype=torch.float32)
    mesh = _mesh()
    for unit in chosen:
        shard_module(unit, mesh=mesh, mp_policy=policy)
    return shard_module(model, mesh=mesh, mp_policy=policy)


def _check_model(model: torch.nn.Module) -> None:
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            where = f"module '{name}'" if name else "the model"
            raise ValueError(f"fully_shard: {where} is sharded already; call it once for a model")
    for name, parameter in model.named_parameters():
        if parameter.device.type not in ("cpu", "meta"):
            raise ValueError(
                f"fully_shard: parameter '{name}' is on {parameter.device}, and the backend mydist "
                'is for CPUs. Write init_process_group("cpu:mydist,cuda:nccl") and use '
                "torch.distributed.fsdp.fully_shard"
            )


def _chosen_units(
    model: torch.nn.Module, units: Callable[[torch.nn.Module], bool] | None
) -> list[torch.nn.Module]:
    """Inner modules before those that contain them, as FSDP2 wants them; without the model."""
    if units is None:
        return unit_modules(model)
    if not callable(units):
        raise wrong_type("fully_shard: units", units, "a function of a module, or None")
    chosen = [module for module in model.modules() if module is not model and units(module)]
    if not chosen:
        raise ValueError(
            f"fully_shard: units chose none of the {sum(1 for _ in model.modules())} modules; it "
            "is called with each module and returns True for the blocks of the model"
        )
    return chosen[::-1]


def _mesh() -> DeviceMesh:
    """All ranks, over mydist."""
    c10d.register()
    if not dist.is_initialized():
        dist.init_process_group("mydist", init_method="mydist://")
    group: Any = dist.group.WORLD
    if dist.get_backend(group) != "mydist":
        group = dist.new_group(backend="mydist")
    return DeviceMesh.from_group(group, "cpu")
