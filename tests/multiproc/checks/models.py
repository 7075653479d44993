"""Small models and data for the checks of training."""

from __future__ import annotations

from collections.abc import Callable

import torch

import mydist as md
from multiproc.reference import raw


def tiny_model(seed: int = 0) -> torch.nn.Sequential:
    """Two linear layers in float64; equal on all ranks."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2)
    ).double()


def batch(rank: int, step: int = 0, rows: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs (rows, 4) and targets (rows, 2) that belong to one rank and step."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return (
        torch.rand(rows, 4, generator=generator, dtype=torch.float64),
        torch.rand(rows, 2, generator=generator, dtype=torch.float64),
    )


def loss_of(model: torch.nn.Module, rank: int, step: int = 0) -> torch.Tensor:
    inputs, targets = batch(rank, step)
    return torch.nn.functional.mse_loss(model(inputs), targets)


def gradients(model: torch.nn.Module, loss: Callable[[], torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients of `loss()`, without touching `.grad` or running any hook."""
    named = dict(model.named_parameters())
    values = torch.autograd.grad(loss(), list(named.values()), allow_unused=True)
    return {
        name: torch.zeros_like(p) if value is None else value
        for (name, p), value in zip(named.items(), values, strict=True)
    }


def expect_average(
    model: torch.nn.Module, loss_on: Callable[[int], torch.Tensor], factor: float = 1.0
) -> None:
    """`.grad` is `factor` × the mean over all ranks of the gradients of `loss_on(rank)`."""
    wanted: dict[str, torch.Tensor] = {}
    for rank in range(md.size()):
        for name, value in gradients(model, lambda rank=rank: loss_on(rank)).items():
            wanted[name] = wanted.get(name, 0) + value * factor / md.size()
    for name, parameter in model.named_parameters():
        if parameter.grad is None and md.size() == 1 and not wanted[name].any():
            continue  # Alone, an unused parameter stays without a gradient, as torch leaves it.
        assert parameter.grad is not None, f"{name} has no gradient"
        torch.testing.assert_close(parameter.grad, wanted[name], rtol=1e-12, atol=1e-14)


def expect_equal_parameters(model: torch.nn.Module) -> None:
    """Bitwise the same on all ranks."""
    everyone = md.allgather_object({k: raw(v) for k, v in model.state_dict().items()})
    for rank, other in enumerate(everyone):
        different = [name for name in other if other[name] != everyone[0][name]]
        assert not different, f"rank {rank} differs from rank 0 in {different}"
