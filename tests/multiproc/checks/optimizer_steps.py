"""DistributedOptimizer: what lands in the gradients and parameters."""

from __future__ import annotations

from typing import Any

import torch

import mydist as md
from multiproc.checks.models import (
    expect_average,
    expect_equal_parameters,
    gradients,
    loss_of,
    tiny_model,
)
from multiproc.registry import check


def wrapped(model: torch.nn.Module, **options: Any) -> Any:
    options.setdefault("named_parameters", model.named_parameters())
    return md.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), **options)


class ScaledCompressor(md.Compressor):
    """A user's own compressor: travels as float32, halved."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return (tensor / 2).float(), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx) * 2


@check(cases=[(0,), (1,), (2,), (100,)])
def averages_with_any_number_of_groups(groups: int) -> None:
    model = tiny_model()
    optimizer = wrapped(model, groups=groups or None)
    for step in range(3):
        optimizer.zero_grad()
        loss_of(model, md.rank(), step).backward()
        optimizer.synchronize()
        expect_average(model, lambda rank, step=step: loss_of(model, rank, step))
        with optimizer.skip_synchronize():
            optimizer.step()
    expect_equal_parameters(model)


@check()
def groups_by_parameter_lists() -> None:
    model = tiny_model()
    first, last = list(model[0].parameters()), list(model[2].parameters())
    optimizer = wrapped(model, groups=[[first[0], last[1]]])
    loss_of(model, md.rank()).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank))


@check()
def a_step_equals_the_plain_optimizer_on_averaged_gradients() -> None:
    model, reference = tiny_model(), tiny_model()
    optimizer = md.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    plain = torch.optim.Adam(reference.parameters(), lr=0.01)
    for step in range(5):
        optimizer.zero_grad()
        loss_of(model, md.rank(), step).backward()
        optimizer.step()
        everyone = [
            gradients(reference, lambda rank=rank, step=step: loss_of(reference, rank, step))
            for rank in range(md.size())
        ]
        for name, parameter in reference.named_parameters():
            parameter.grad = torch.stack([g[name] for g in everyone]).mean(0)
        plain.step()
    for mine, wanted in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-9, atol=1e-12)


@check()
def sum_instead_of_average() -> None:
    model = tiny_model()
    optimizer = wrapped(model, op=md.Sum)
    loss_of(model, md.rank()).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank), factor=md.size())


@check()
def predivide_gives_the_same_average() -> None:
    model = tiny_model()
    optimizer = wrapped(model, gradient_predivide_factor=float(md.size()))
    loss_of(model, md.rank()).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank))


@check(cases=[("none",), ("fp16",), ("bf16",)])
def compression(kind: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=getattr(md.Compression, kind))
    loss_of(model, md.rank()).backward()
    optimizer.synchronize()
    tolerance = {"none": 1e-12, "fp16": 2e-3, "bf16": 2e-2}[kind]
    everyone = [
        gradients(model, lambda rank=rank: loss_of(model, rank)) for rank in range(md.size())
    ]
    for name, parameter in model.named_parameters():
        wanted = torch.stack([g[name] for g in everyone]).mean(0)
        scale = max(float(g[name].abs().max()) for g in everyone)
        assert parameter.grad is not None and parameter.grad.dtype == torch.float64
        assert float((parameter.grad - wanted).abs().max()) <= tolerance * scale, name
        if kind != "none" and md.size() > 1:
            assert not torch.equal(parameter.grad, wanted), f"{name} travelled uncompressed"
    optimizer.step()
    expect_equal_parameters(model)


@check(cases=[(None,), (1,), (3,)])
def custom_compressor(groups: int | None) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=ScaledCompressor(), groups=groups)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, md.rank(), step).backward()
        optimizer.synchronize()
        everyone = [
            gradients(model, lambda rank=rank, step=step: loss_of(model, rank, step))
            for rank in range(md.size())
        ]
        for name, parameter in model.named_parameters():
            wanted = torch.stack([g[name] for g in everyone]).mean(0)
            torch.testing.assert_close(parameter.grad, wanted, rtol=1e-5, atol=1e-7)
        with optimizer.skip_synchronize():
            optimizer.step()
    expect_equal_parameters(model)


@check()
def unused_parameters_differ_by_rank_and_step() -> None:
    torch.manual_seed(0)
    branches = torch.nn.ModuleList(torch.nn.Linear(4, 2) for _ in range(3)).double()
    optimizer = wrapped(branches)

    def loss_on(rank: int, step: int) -> torch.Tensor:
        used = branches[(rank + step) % 3]
        return used(torch.full((2, 4), rank + 1.0, dtype=torch.float64)).pow(2).mean()

    for step in range(4):
        optimizer.zero_grad()
        loss_on(md.rank(), step).backward()
        optimizer.synchronize()
        expect_average(branches, lambda rank, step=step: loss_on(rank, step))
        with optimizer.skip_synchronize():
            optimizer.step()
    expect_equal_parameters(branches)


@check()
def tied_weights_are_reduced_once() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Tanh(), torch.nn.Linear(3, 3))
    model = model.double()
    model[2].weight = model[0].weight
    optimizer = wrapped(model, named_parameters=model.named_parameters(remove_duplicate=False))

    def loss_on(rank: int) -> torch.Tensor:
        return model(torch.full((2, 3), rank + 0.5, dtype=torch.float64)).pow(2).mean()

    loss_on(md.rank()).backward()
    optimizer.synchronize()
    expect_average(model, loss_on)


@check()
def reassigned_data_and_none_gradients() -> None:
    model = tiny_model()
    optimizer = wrapped(model)
    for step in range(3):
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()
            parameter.grad = None
        loss_of(model, md.rank(), step).backward()
        optimizer.synchronize()
        expect_average(model, lambda rank, step=step: loss_of(model, rank, step))
        with optimizer.skip_synchronize():
            optimizer.step()


@check()
def non_contiguous_parameters() -> None:
    weight = torch.nn.Parameter(torch.arange(12.0, dtype=torch.float64).view(3, 4).t())
    optimizer = md.DistributedOptimizer(torch.optim.SGD([weight], lr=0.1))
    factor = torch.arange(12.0, dtype=torch.float64).view(4, 3)
    (weight * factor * (md.rank() + 1)).sum().backward()
    optimizer.step()
    mean = (md.size() + 1) / 2
    wanted = torch.arange(12.0, dtype=torch.float64).view(3, 4).t() - 0.1 * mean * factor
    torch.testing.assert_close(weight.detach(), wanted)


@check()
def empty_and_scalar_parameters() -> None:
    scalar = torch.nn.Parameter(torch.tensor(2.0))
    empty = torch.nn.Parameter(torch.empty(0, 3))
    optimizer = md.DistributedOptimizer(torch.optim.SGD([scalar, empty], lr=1.0))
    (scalar * (md.rank() + 1) + empty.sum()).backward()
    optimizer.step()
    assert abs(scalar.item() - (2.0 - (md.size() + 1) / 2)) < 1e-6


@check()
def checkpointed_and_reentrant_backward() -> None:
    from torch.utils.checkpoint import checkpoint

    for reentrant in (False, True):
        model = tiny_model()
        optimizer = wrapped(model)
        inputs = torch.full((2, 4), md.rank() + 1.0, dtype=torch.float64, requires_grad=True)
        hidden = checkpoint(model[0], inputs, use_reentrant=reentrant)
        model[2](model[1](hidden)).pow(2).mean().backward()
        optimizer.synchronize()

        def loss_on(rank: int, model: torch.nn.Sequential = model) -> torch.Tensor:
            return model(torch.full((2, 4), rank + 1.0, dtype=torch.float64)).pow(2).mean()

        expect_average(model, loss_on)
