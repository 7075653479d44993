"""DistributedOptimizer under torch.compile, checkpointing, freezing, and several optimizers."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

import mydist as md
from multiproc.checks import integer_averages
from multiproc.checks.models import (
    BY_PATH,
    COMPRESSIONS,
    batch,
    expect_average,
    expect_equal_parameters,
    expect_same_parameters,
    loss_of,
    raises,
    tiny_model,
    wrapped,
)
from multiproc.reference import expect_equal, expect_near
from multiproc.registry import check


def train(model: torch.nn.Module, forward: Any, steps: int = 3) -> None:
    optimizer = wrapped(model)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(forward, md.rank(), step).backward()
        optimizer.step()


@check(cases=[("whole model",), ("per block",), ("wrapped before",)])
def compiled_models_train_alike(how: str) -> None:
    plain, model = tiny_model(), tiny_model()
    train(plain, plain)
    forward: Any = model
    torch._dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # What torch deprecates in its own compiler.
        if how == "per block":
            for index in (0, 2):
                model[index] = torch.compile(model[index], backend="aot_eager")
        else:
            forward = torch.compile(model, backend="aot_eager")
        train(forward if how == "whole model" else model, forward)
    expect_same_parameters(model, plain)
    expect_equal_parameters(model)


@check(cases=[(*path, join, passes, to_none) for path in BY_PATH
              for join in ("cat", "stack", "flat buffer")
              for passes in (1, 2) for to_none in (True, False)])  # fmt: skip
def gradients_that_share_memory(path: str, join: str, passes: int, to_none: bool) -> None:
    parameters = [torch.nn.Parameter(torch.full((3,), 1.0 + i)) for i in range(2)]
    if join == "flat buffer":
        flat = torch.zeros(6)
        for i, parameter in enumerate(parameters):
            parameter.grad = flat[3 * i : 3 * i + 3]
        to_none = False
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(parameters, lr=0.5),
        named_parameters=[(f"{join}.{i}", p) for i, p in enumerate(parameters)],
        compression=COMPRESSIONS[path],
        backward_passes_per_step=passes,
    )
    for _ in range(3):
        starts = [parameter.detach().clone() for parameter in parameters]
        for _ in range(passes):
            joined = torch.stack(parameters) if join == "stack" else torch.cat(parameters)
            ((md.rank() + 1) * joined.pow(2).sum()).backward()
        optimizer.step()
        mean = passes * (md.size() + 1) / 2  # Of what the ranks weigh their losses with.
        for start, parameter in zip(starts, parameters, strict=True):
            expect_near(parameter, start - 0.5 * 2 * start * mean, 1e-6, "parameter")
        optimizer.zero_grad(set_to_none=to_none)


@check(min_size=2)
def a_layer_in_two_reentrant_checkpoints() -> None:
    torch.manual_seed(0)
    layer = torch.nn.Linear(4, 4).double()

    def loss_on(rank: int) -> torch.Tensor:
        inputs = torch.full((2, 4), rank + 1.0, dtype=torch.float64, requires_grad=True)
        hidden = checkpoint(layer, inputs, use_reentrant=True)
        return checkpoint(layer, hidden, use_reentrant=True).pow(2).mean()

    def plain_on(rank: int) -> torch.Tensor:
        return layer(layer(torch.full((2, 4), rank + 1.0, dtype=torch.float64))).pow(2).mean()

    # Each checkpoint runs a backward of its own, so the gradient is ready twice.
    optimizer = wrapped(layer)
    raises(lambda: loss_on(md.rank()).backward(), "was computed more than", "no_sync()")
    raises(optimizer.step, "changed in place")
    optimizer.zero_grad()
    with optimizer.no_sync():
        loss_on(md.rank()).backward()
    optimizer.synchronize()
    expect_average(layer, plain_on)
    optimizer.zero_grad()
    optimizer.set_backward_passes_per_step(2)
    loss_on(md.rank()).backward()
    optimizer.synchronize()
    expect_average(layer, plain_on)


@check(cases=BY_PATH)
def freezing_and_unfreezing_between_steps(path: str) -> None:
    model, reference = tiny_model(), tiny_model()
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step, trained in enumerate([(0, 2), (2,), (0,), (0, 2)]):
        optimizer.zero_grad()
        for which in (model, reference):
            for index in (0, 2):
                which[index].requires_grad_(index in trained)
        loss_of(model, md.rank(), step).backward()
        optimizer.step()
        average_of_trained(reference, step)
        plain.step()
        for index in {0, 2} - set(trained):
            assert all(p.grad is None for p in model[index].parameters())
    expect_same_parameters(model, reference)


def average_of_trained(model: torch.nn.Module, step: int) -> None:
    trained = [p for p in model.parameters() if p.requires_grad]
    everyone = [
        torch.autograd.grad(loss_of(model, rank, step), trained) for rank in range(md.size())
    ]
    for parameter in model.parameters():
        parameter.grad = None
    for parameter, of_ranks in zip(trained, zip(*everyone, strict=True), strict=True):
        parameter.grad = torch.stack(of_ranks).mean(0)


@check(min_size=2, cases=[(torch.uint8,), (torch.int64,)])
def frozen_integers_in_a_group(dtype: torch.dtype) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    counts = torch.nn.Parameter(torch.zeros(5, 7, dtype=dtype), requires_grad=False)
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD([weight, counts], lr=0.1),
        named_parameters=[("weight", weight), ("counts", counts)],
        groups=[[weight, counts]],
    )
    for step in range(2):
        inputs = integer_averages.everybody(dtype, seed=step)
        (weight * md.rank()).sum().backward()
        counts.grad = inputs[md.rank()].clone()
        optimizer.synchronize()
        expect_equal(counts.grad, integer_averages.average(inputs))
        assert weight.grad is not None
        assert weight.grad.tolist() == [(md.size() - 1) / 2] * 3
        optimizer.zero_grad()


@check(min_size=2, cases=BY_PATH)
def two_optimizers_with_the_same_parameters(path: str) -> None:
    model = tiny_model()
    first = wrapped(model, compression=COMPRESSIONS[path])
    second = wrapped(model, compression=COMPRESSIONS[path])
    raises(
        lambda: loss_of(model, md.rank()).backward(),
        "is already being reduced by another DistributedOptimizer",
        "Delete the one",
    )
    first.synchronize()
    del first  # As when a cell of a notebook is run again.
    model.zero_grad()
    second = wrapped(model, compression=COMPRESSIONS[path])
    loss_of(model, md.rank()).backward()
    second.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank))


@check(min_size=2)
def two_optimizers_with_the_same_names() -> None:
    first, second = tiny_model(1), tiny_model(2)
    optimizers = [wrapped(model) for model in (first, second)]
    # One after the other is fine.
    for model, optimizer in zip((first, second), optimizers, strict=True):
        loss_of(model, md.rank()).backward()
        optimizer.step()
        optimizer.zero_grad()
    loss_of(first, md.rank()).backward()
    raises(
        lambda: loss_of(second, md.rank()).backward(),
        "Two DistributedOptimizers have a parameter named '2.",
        "named_parameters",
    )
    optimizers[0].step()


@check(min_size=2)
def groups_of_two_optimizers_do_not_meet() -> None:
    first, second = tiny_model(1), torch.nn.Linear(4, 2).double()
    with torch.no_grad():
        for parameter in second.parameters():
            parameter.fill_(0.5)
    optimizers = [
        md.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            named_parameters=[(f"{prefix}.{n}", p) for n, p in model.named_parameters()],
            groups=1,
        )
        for prefix, model in (("first", first), ("second", second))
    ]

    def loss_on(rank: int) -> torch.Tensor:
        """Backward is through the end of the first model, the second, the start of the first."""
        inputs, targets = batch(rank)
        hidden = first[0](inputs)
        beside = second(inputs)
        return (first[2](first[1](hidden)) - targets).pow(2).mean() + beside.pow(2).mean()

    loss_on(md.rank()).backward()
    for optimizer in optimizers:
        optimizer.synchronize()
    expect_average(first, loss_on)
    expect_average(second, loss_on)


@check()
def num_groups_is_accepted() -> None:
    model = tiny_model()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        optimizer = wrapped(model, num_groups=2)
    assert [w.category for w in caught] == [DeprecationWarning]
    assert "write groups instead" in str(caught[0].message)
    assert caught[0].filename == wrapped.__code__.co_filename, "it points at the caller"
    loss_of(model, md.rank()).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank))
