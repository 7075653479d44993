"""Small models and data for the checks of training."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

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


def raises(call: Callable[[], Any], *parts: str, kind: type[Exception] = ValueError) -> None:
    """`call` raises `kind` with all of `parts` in its text."""
    try:
        call()
    except kind as error:
        for part in parts:
            assert part in str(error), f"'{part}' is not in: {error}"
    else:
        raise AssertionError(f"no {kind.__name__}; expected one with {parts}")


@contextmanager
def checked_every(steps: int | None) -> Iterator[None]:
    """Optimizers wrapped within have this MYDIST_CHECK_CONSISTENCY; None: without the variable."""
    variable = "MYDIST_CHECK_CONSISTENCY"
    before = os.environ.pop(variable, None)
    if steps is not None:
        os.environ[variable] = str(steps)
    try:
        yield
    finally:
        os.environ.pop(variable, None)
        if before is not None:
            os.environ[variable] = before


def unchecked() -> AbstractContextManager[None]:
    """Optimizers wrapped within do not compare the ranks' parameters at their first step."""
    return checked_every(-1)


def wrapped(model: torch.nn.Module, **options: Any) -> Any:
    """A DistributedOptimizer of SGD around `model`."""
    options.setdefault("named_parameters", model.named_parameters())
    return md.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)


class PassThrough(md.Compressor):
    """Takes the Python path without changing anything."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


COMPRESSIONS: dict[str, Any] = {"native": md.Compression.none, "python": PassThrough}
BY_PATH = [(name,) for name in COMPRESSIONS]


def optimizer_classes() -> list[str]:
    """Every optimizer of torch.optim but the base class and LBFGS."""
    return sorted(
        name
        for name, value in vars(torch.optim).items()
        if isinstance(value, type)
        and issubclass(value, torch.optim.Optimizer)
        and value not in (torch.optim.Optimizer, torch.optim.LBFGS)
    )


def model_for(name: str) -> torch.nn.Module:
    """A small float64 model, equal on all ranks, that the optimizer of this name can train.

    Muon takes matrices only, SparseAdam sparse gradients.
    """
    torch.manual_seed(0)
    if name == "SparseAdam":
        return torch.nn.Embedding(5, 3, sparse=True).double()
    return torch.nn.Linear(3, 4, bias=name != "Muon").double()


def optimizer_for(name: str, model: torch.nn.Module, **options: Any) -> torch.optim.Optimizer:
    if name == "SGD":
        options.setdefault("momentum", 0.9)
    made: torch.optim.Optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.01, **options)
    return made


def loss_for(model: torch.nn.Module, rank: int, step: int = 0) -> torch.Tensor:
    """The loss of one rank and step for any `model_for`."""
    if isinstance(model, torch.nn.Embedding):
        rows = torch.tensor([rank % 5, (rank + step) % 5, 4, 4])
        return (model(rows) * (rank + 1.0)).pow(2).sum()
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.rand(6, 3, generator=generator, dtype=torch.float64)
    return (model(inputs) - 0.5).pow(2).mean()


def average_gradients(
    model: torch.nn.Module, loss_on: Callable[[int], torch.Tensor], ranks: Sequence[int]
) -> None:
    """Sets `.grad` to the mean of the gradients of `loss_on(rank)`; sparse ones stay sparse."""
    parameters = list(model.parameters())
    everyone = [torch.autograd.grad(loss_on(rank), parameters) for rank in ranks]
    for parameter, of_ranks in zip(parameters, zip(*everyone, strict=True), strict=True):
        total = of_ranks[0]
        for gradient in of_ranks[1:]:
            total = total + gradient
        parameter.grad = total.coalesce() / len(ranks) if total.is_sparse else total / len(ranks)


def expect_same_parameters(
    model: torch.nn.Module, reference: torch.nn.Module, tolerance: float = 1e-10
) -> None:
    for mine, wanted in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=tolerance, atol=tolerance)
