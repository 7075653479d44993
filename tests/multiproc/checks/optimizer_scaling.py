"""DistributedOptimizer and GradScaler: ranks agree about overflow, scale and skipped steps."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import expect_equal_parameters, tiny_model, wrapped
from multiproc.registry import check


def scaler_of(scale: float) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def values(model: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def unchanged(model: torch.nn.Module, before: list[torch.Tensor]) -> bool:
    return all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def backward(model: torch.nn.Module, scaler: Any, overflow: bool = False) -> None:
    inputs = torch.full((2, 4), md.rank() + 1.0)
    loss = model(inputs).pow(2).mean()
    scaler.scale(loss * float("inf") if overflow else loss).backward()


@check()
def grad_scaler_with_unscale_and_clipping() -> None:
    model = tiny_model().float()
    optimizer = wrapped(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=256.0)
    for step in range(2):
        optimizer.zero_grad()
        inputs = torch.full((2, 4), md.rank() + 1.0 + step)
        scaler.scale(model(inputs).pow(2).mean()).backward()
        optimizer.synchronize()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        with optimizer.skip_synchronize():
            scaler.step(optimizer)
        scaler.update()
    expect_equal_parameters(model)


@check(cases=[(True,), (False,)])
def unscale_waits_for_the_reduction(views: bool) -> None:
    models = [tiny_model().float() for _ in range(2)]
    steps: list[Any] = []
    for model, name in zip(models, ("plain", "scaled"), strict=True):
        named = [(f"{name}.{n}", p) for n, p in model.named_parameters()]
        options = {"named_parameters": named, "gradient_as_buffer_view": views}
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        steps.append(md.DistributedOptimizer(inner, **options))
    scaler = scaler_of(256.0)
    for step in range(4):
        for optimizer in steps:
            optimizer.zero_grad(set_to_none=step % 2 == 0)
        inputs = torch.full((2, 4), md.rank() + 1.0 + step)
        models[0](inputs).pow(2).mean().backward()
        steps[0].clip_grad_norm_(0.1)
        steps[0].step()
        scaler.scale(models[1](inputs).pow(2).mean()).backward()
        scaler.unscale_(steps[1])
        assert not steps[1]._distribution.paths[0].pending()
        torch.nn.utils.clip_grad_norm_(models[1].parameters(), 0.1)
        scaler.step(steps[1])  # Which reduces nothing a second time.
        scaler.update()
        for mine, other in zip(*(m.parameters() for m in models), strict=True):
            assert torch.allclose(mine, other, rtol=1e-5, atol=1e-6)
    expect_equal_parameters(models[1])


@check(min_size=2, cases=[(True,), (False,)])
def overflow_found_by_unscale_skips_everywhere(synchronizes: bool) -> None:
    model = tiny_model().float()
    optimizer = wrapped(model)
    scaler = scaler_of(64.0)
    before = values(model)
    backward(model, scaler, overflow=md.rank() == md.size() - 1)
    if synchronizes:
        optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize() if synchronizes else nullcontext():
        scaler.step(optimizer)
    scaler.update()
    assert unchanged(model, before) and scaler.get_scale() == 32.0


@check(min_size=2, cases=[(kind,) for kind in ("SGD", "Adam", "fused Adam")])
def overflow_on_one_rank_skips_everywhere(kind: str) -> None:
    model = tiny_model().float()
    options: dict[str, Any] = {"fused": True} if kind.startswith("fused") else {}
    inner = getattr(torch.optim, kind.rpartition(" ")[2])(model.parameters(), lr=0.1, **options)
    optimizer = md.DistributedOptimizer(inner)
    scaler = scaler_of(1024.0)
    for culprit in range(md.size()):
        before = values(model)
        optimizer.zero_grad()
        backward(model, scaler, overflow=md.rank() == culprit)
        scaler.step(optimizer)
        scaler.update()
        assert unchanged(model, before), f"a step was taken although rank {culprit} overflowed"
    assert scaler.get_scale() == 1024.0 / 2 ** md.size()
    before = values(model)
    optimizer.zero_grad()
    backward(model, scaler)
    scaler.step(optimizer)
    scaler.update()
    assert not unchanged(model, before)
    expect_equal_parameters(model)


@check(min_size=2)
def overflow_with_several_backward_passes() -> None:
    model = tiny_model().float()
    optimizer = wrapped(model, backward_passes_per_step=2)
    scaler = scaler_of(64.0)
    before = values(model)
    backward(model, scaler, overflow=md.rank() == 0)
    backward(model, scaler)
    scaler.step(optimizer)
    scaler.update()
    assert unchanged(model, before) and scaler.get_scale() == 32.0


@check(min_size=2)
def synchronize_after_unscale_is_an_error() -> None:
    model = tiny_model().float()
    optimizer = wrapped(model, op=md.Sum)
    scaler = scaler_of(256.0)
    backward(model, scaler)
    scaler.unscale_(optimizer)
    reduced = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    try:
        optimizer.synchronize()
    except ValueError as error:
        assert "synchronize() was called after GradScaler.unscale_()" in str(error), error
    else:
        raise AssertionError("the gradients were reduced a second time")
    assert all(torch.equal(p.grad, r) for p, r in zip(model.parameters(), reduced, strict=True))
    scaler.step(optimizer)
    scaler.update()
    # A step that is skipped leaves nothing behind, also where nobody calls zero_grad().
    model.zero_grad(set_to_none=False)
    backward(model, scaler, overflow=True)
    scaler.step(optimizer)
    scaler.update()
    model.zero_grad(set_to_none=False)
    backward(model, scaler)
    optimizer.synchronize()
    scaler.unscale_(optimizer)
    with optimizer.skip_synchronize():
        scaler.step(optimizer)
    expect_equal_parameters(model)
