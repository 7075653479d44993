"""Wrapped optimizers in the next job of a process, as the next epoch of an elastic job is one."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import mydist as md
from mydist.optim.wrapping import renew_all


def one_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()


@pytest.mark.usefixtures("job")
def test_a_wrapped_optimizer_goes_on_in_the_next_job() -> None:
    torch.manual_seed(2)
    model, twin = torch.nn.Linear(3, 1), torch.nn.Linear(3, 1)
    twin.load_state_dict(model.state_dict())
    plain = torch.optim.SGD(twin.parameters(), lr=0.1, momentum=0.9)
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
        named_parameters=model.named_parameters(),
    )
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for number in range(3):
        one_step(model, optimizer)
        one_step(twin, plain)
        scheduler.step()
        plain.param_groups[0]["lr"] *= 0.5
        model(torch.ones(2, 3)).sum().backward()  # On its way when the job ends.
        before = optimizer._distribution
        md.shutdown()
        md.init()
        renew_all()
        assert optimizer._distribution is not before, number
        assert all(parameter.grad is None for parameter in model.parameters())
    for own, other in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(own, other)


@pytest.mark.usefixtures("job")
def test_the_newest_wrapping_of_an_optimizer_is_made_anew() -> None:
    model = torch.nn.Linear(3, 1)
    first = md.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    second = md.DistributedOptimizer(first, backward_passes_per_step=2)
    renew_all()
    renewed = second._distribution
    assert renewed.paths and first._distribution is renewed
    one_step(model, second)


@pytest.mark.usefixtures("job")
def test_what_is_made_anew_keeps_no_optimizer_alive() -> None:
    gc.collect()
    gc.disable()
    try:
        model = torch.nn.Linear(3, 1)
        optimizer = md.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), groups=1
        )
        gone, weight = weakref.ref(optimizer), weakref.ref(model.weight)
        renew_all()
        del optimizer, model
        assert gone() is None
        assert weight() is None
    finally:
        gc.enable()


@pytest.mark.usefixtures("job")
def test_what_an_earlier_job_had_is_freed() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = md.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
    path = weakref.ref(next(iter(optimizer._distribution.paths)))
    renew_all()
    gc.collect()
    assert path() is None
    one_step(model, optimizer)


@pytest.mark.usefixtures("job")
def test_state_in_slices_cannot_be_made_anew() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = md.ShardedOptimizer(torch.optim.Adam(model.parameters()))
    with pytest.raises(ValueError, match="ShardedAdam: its state lies in slices"):
        renew_all()
    del optimizer
