"""ShardedOptimizer(master_dtype=…): bfloat16 parameters, updated in float32."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import expect_equal_parameters
from multiproc.checks.sharded import BY_STAGE, loss_of, train, uneven_model
from multiproc.checks.sharded_checkpoints import opened, shared_folder
from multiproc.registry import check
from mydist import _C

BF16 = torch.bfloat16


def sharded(model: torch.nn.Module, stage: int, **options: Any) -> Any:
    adam = torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)
    return md.ShardedOptimizer(
        adam, model.named_parameters(), stage, master_dtype=torch.float32, **options
    )


class Reference:
    """AdamW on whole copies in float32; gradients are those of DistributedOptimizer."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model
        self.reducing = md.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        self.masters = [p.detach().float() for p in model.parameters()]
        self.moments = [(torch.zeros_like(m), torch.zeros_like(m)) for m in self.masters]

    def step(self, step: int) -> None:
        self.reducing.zero_grad()
        loss_of(self.model, md.rank(), step).backward()
        self.reducing.synchronize()
        numbers = (step + 1, 0.01, 0.9, 0.999, 1e-8, 0.01)
        for p, master, (first, second) in zip(
            self.model.parameters(), self.masters, self.moments, strict=True
        ):
            assert p.grad is not None
            _C.adamw_(master, p.grad.float(), first, second, *numbers)
            p.detach().copy_(master)


@check(cases=itertools.product((1, 2), ("element", "parameter")))
def small_steps_are_not_lost_to_rounding(stage: int, partition: str) -> None:
    model, other = uneven_model(BF16), uneven_model(BF16)
    optimizer, reference = sharded(model, stage, partition=partition), Reference(other)
    for step in range(5):
        train(model, optimizer, range(step, step + 1))
        reference.step(step)
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    expect_equal_parameters(model)
    for parameter, values in optimizer.state.items():
        assert parameter.dtype == BF16
        assert values["exp_avg"].dtype == values["master"].dtype == torch.float32


@check(cases=BY_STAGE)
def parameters_that_the_program_changes_count(stage: int) -> None:
    model, other = uneven_model(BF16), uneven_model(BF16)
    optimizer = sharded(model, stage)
    for one in (model, other):
        with torch.no_grad():
            one[0].weight.mul_(2)
    reference = Reference(other)
    for step in range(2):
        train(model, optimizer, range(step, step + 1))
        reference.step(step)
    assert all(map(torch.equal, model.parameters(), other.parameters()))


@check(cases=[(stage, files) for stage in (1, 2) for files in (False, True)])
def copies_are_saved(stage: int, files: bool) -> None:
    with shared_folder() as folder:
        model = uneven_model(BF16)
        optimizer = sharded(model, stage)
        checkpoint = opened(folder, model, optimizer, sharded=files)
        train(model, optimizer, range(3))
        checkpoint.save(3)
        slices = copy.deepcopy(optimizer.state_dict())
        other, third = uneven_model(BF16), uneven_model(BF16)
        again, loaded = sharded(other, 3 - stage), sharded(third, stage)
        opened(folder, other, again)
        third.load_state_dict(model.state_dict())
        loaded.load_state_dict(slices)
        for one, its in ((model, optimizer), (other, again), (third, loaded)):
            train(one, its, range(3, 6))
        assert all(map(torch.equal, model.parameters(), other.parameters()))
        assert all(map(torch.equal, model.parameters(), third.parameters()))


@check(cases=BY_STAGE)
def memory_is_that_of_the_paper(stage: int) -> None:
    n = md.size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        *(torch.nn.Linear(64, 64 * n, bias=False, dtype=BF16) for _ in range(2))
    )
    count = sum(p.numel() for p in model.parameters())
    optimizer = sharded(model, stage)
    for p in model.parameters():
        p.float().pow(2).sum().backward()
    optimizer.step()
    use = optimizer.memory()
    assert (use.parameters, use.optimizer) == (2 * count, 12 * count // n)
    assert use.gradients == (2 * count if stage == 1 else 2 * count // n)
    plan = md.memory_plan(model, stage, n, torch.optim.AdamW, master_dtype=torch.float32)
    assert plan.use == use, (plan.use, use)
