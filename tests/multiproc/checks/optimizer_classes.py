"""DistributedOptimizer around every optimizer and scheduler: as one process would train."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import lr_scheduler

import mydist as md
from multiproc.checks.models import (
    average_gradients,
    expect_equal_parameters,
    expect_same_parameters,
    loss_for,
    loss_of,
    model_for,
    optimizer_classes,
    optimizer_for,
    tiny_model,
)
from multiproc.registry import check

Scheduler = Callable[[torch.optim.Optimizer], Any]

# Muon rounds its updates to bfloat16, where the order of an average shows.
TOLERANCES = {"Muon": 1e-3}


def plain_step(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Callable[[int], torch.Tensor]
) -> None:
    """One step of a single process on the average of all ranks' gradients."""
    average_gradients(model, loss, range(md.size()))
    optimizer.step()


FASTER = [(name, how) for name in ("Adam", "AdamW", "SGD") for how in ("fused", "foreach")]


@check(cases=[*[(name, "") for name in optimizer_classes()], *FASTER])
def every_class(name: str, how: str) -> None:
    options = {how: True} if how else {}
    model, reference = model_for(name), model_for(name)
    plain = optimizer_for(name, reference, **options)
    optimizer = md.DistributedOptimizer(
        optimizer_for(name, model, **options), named_parameters=model.named_parameters()
    )
    assert isinstance(optimizer, getattr(torch.optim, name))
    start = [p.detach().clone() for p in model.parameters()]
    for step in range(3):
        optimizer.zero_grad()
        loss_for(model, md.rank(), step).backward()
        optimizer.step()
        plain_step(reference, plain, lambda rank, step=step: loss_for(reference, rank, step))
    expect_same_parameters(model, reference, TOLERANCES.get(name, 1e-10))
    expect_equal_parameters(model)
    assert not any(torch.equal(p, s) for p, s in zip(model.parameters(), start, strict=True))


@check()
def the_wrapped_init_is_not_run_again() -> None:
    made = 0

    class Counting(torch.optim.SGD):
        def __init__(self, parameters: Any) -> None:
            nonlocal made
            made += 1
            super().__init__(parameters, lr=0.1)

    model = tiny_model()
    optimizer = md.DistributedOptimizer(md.DistributedOptimizer(Counting(model.parameters())))
    assert made == 1 and isinstance(optimizer, Counting)
    loss_of(model, md.rank()).backward()
    optimizer.step()
    expect_equal_parameters(model)


@check()
def a_state_dict_continues_where_it_was_saved() -> None:
    model = tiny_model()
    optimizer = md.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01))
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, md.rank(), step).backward()
        optimizer.step()
    restored = tiny_model()
    restored.load_state_dict(model.state_dict())
    again = md.DistributedOptimizer(torch.optim.Adam(restored.parameters(), lr=0.5))
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for trained, with_optimizer in ((model, optimizer), (restored, again)):
        with_optimizer.zero_grad()
        loss_of(trained, md.rank(), 2).backward()
        with_optimizer.step()
    for mine, wanted in zip(restored.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine, wanted)


SCHEDULERS: dict[str, Scheduler] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda _: 0.8),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, total_iters=2),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, total_iters=3),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.7),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, total_iters=5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=3),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, T_0=2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, base_lr=0.01, max_lr=0.2, step_size_up=2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.2, total_steps=8),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.5)], milestones=[2]
    ),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o), lr_scheduler.ExponentialLR(o, 0.5)]
    ),
}


@check()
def no_scheduler_is_missing_here() -> None:
    known = {
        name
        for name, value in vars(lr_scheduler).items()
        if isinstance(value, type)
        and issubclass(value, lr_scheduler.LRScheduler)
        and not name.startswith("_")
    }
    assert known - {"LRScheduler"} == set(SCHEDULERS)


@check(cases=[(name,) for name in SCHEDULERS])
def every_scheduler(name: str) -> None:
    reference = tiny_model()
    plain = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    model = tiny_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with warnings.catch_warnings():
        # Some of torch's own schedulers warn about their own calls of step(epoch).
        warnings.filterwarnings("error", message=".*lr_scheduler.step.*before.*optimizer.step")
        if md.rank() % 2:  # It makes no difference which is wrapped around which.
            optimizer = md.DistributedOptimizer(inner)
            scheduler = SCHEDULERS[name](optimizer)
        else:
            scheduler = SCHEDULERS[name](inner)
            optimizer = md.DistributedOptimizer(inner)
        of_plain = SCHEDULERS[name](plain)
        arguments = (1.0,) if name == "ReduceLROnPlateau" else ()
        for step in range(5):
            optimizer.zero_grad()
            loss_of(model, md.rank(), step).backward()
            optimizer.step()
            plain_step(reference, plain, lambda rank, step=step: loss_of(reference, rank, step))
            if step == 2:  # Which a scheduler goes on with.
                optimizer.load_state_dict(optimizer.state_dict())
            scheduler.step(*arguments)
            of_plain.step(*arguments)
            assert optimizer.param_groups[0]["lr"] == plain.param_groups[0]["lr"]
    expect_same_parameters(model, reference)
