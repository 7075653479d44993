"""DistributedOptimizer: accumulation, clipping, closures, schedulers, AMP, later parameters."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings

import torch

import mydist as md
from multiproc.checks.models import (
    BY_PATH,
    COMPRESSIONS,
    expect_average,
    expect_equal_parameters,
    gradients,
    loss_of,
    tiny_model,
    wrapped,
)
from multiproc.registry import check


@check(cases=BY_PATH)
def clipping_uses_the_reduced_norm(path: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    everyone = [
        gradients(model, lambda rank=rank: loss_of(model, rank)) for rank in range(md.size())
    ]
    squares = [
        float(torch.stack([g[name] for g in everyone]).mean(0).pow(2).sum()) for name in everyone[0]
    ]
    norm = math.sqrt(sum(squares))
    before = [p.detach().clone() for p in model.parameters()]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss_of(model, md.rank()).backward()
        reported = optimizer.clip_grad_norm_(norm / 4)
        optimizer.step()
    assert math.isclose(float(reported), norm, rel_tol=1e-9)
    moved = math.sqrt(
        sum(
            float((p.detach() - b).pow(2).sum())
            for p, b in zip(model.parameters(), before, strict=True)
        )
    )
    assert math.isclose(moved, 0.1 * norm / 4, rel_tol=1e-4)
    expect_equal_parameters(model)


@check()
def step_after_synchronize_warns_once_and_reduces_once() -> None:
    model = tiny_model()
    optimizer = wrapped(model, op=md.Sum)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, md.rank(), step).backward()
            optimizer.synchronize()
            reduced = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            optimizer.step()
            for p, kept in zip(model.parameters(), reduced, strict=True):
                assert p.grad is not None and torch.equal(p.grad, kept), "reduced twice"
    texts = [str(w.message) for w in caught if "skip_synchronize" in str(w.message)]
    assert len(texts) == 1, texts


@check(min_size=2, cases=BY_PATH)
def a_backward_after_synchronize_is_reduced_too(path: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    loss_of(model, md.rank(), 0).backward()
    optimizer.synchronize()
    with optimizer.no_sync():
        loss_of(model, md.rank(), 1).backward()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # It is reduced again, which is right
        optimizer.step()
    expect_equal_parameters(model)


@check(cases=BY_PATH)
def parameters_added_later(path: str) -> None:
    model = tiny_model()
    head = torch.nn.Linear(2, 1).double()
    with torch.no_grad():
        for p in head.parameters():
            p.fill_(0.3)
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    loss_of(model, md.rank()).backward()
    optimizer.step()
    optimizer.add_param_group({"params": list(head.parameters()), "lr": 0.01})
    whole = torch.nn.Sequential(*model, head)

    def loss_on(rank: int) -> torch.Tensor:
        return whole(torch.full((2, 4), rank + 1.0, dtype=torch.float64)).pow(2).mean()

    optimizer.zero_grad()
    loss_on(md.rank()).backward()
    optimizer.synchronize()
    expect_average(whole, loss_on)
    with optimizer.skip_synchronize():
        optimizer.step()
    expect_equal_parameters(whole)


@check()
def passes_for_the_wrapped_optimizer() -> None:
    model = tiny_model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    calls: list[str] = []
    plain.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer = md.DistributedOptimizer(plain)
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    assert isinstance(optimizer, torch.optim.SGD)
    assert optimizer.defaults is plain.defaults
    loss_of(model, md.rank()).backward()
    optimizer.step()
    assert calls == ["before", "after"]
    state = pickle.loads(pickle.dumps(copy.deepcopy(optimizer.state_dict())))
    buffer = io.BytesIO()
    torch.save(state, buffer)
    buffer.seek(0)
    optimizer.load_state_dict(torch.load(buffer))
    optimizer.zero_grad()
    loss_of(model, md.rank(), 1).backward()
    optimizer.step()
    assert calls == ["before", "after"] * 2, "hooks must run once per step after loading too"
    assert str(optimizer.state_dict()) == str(plain.state_dict())
    expect_equal_parameters(model)


@check()
def wrapping_again_replaces_the_hooks() -> None:
    model = tiny_model()
    plain = torch.optim.SGD(model.parameters(), lr=0.1)
    md.DistributedOptimizer(plain, op=md.Sum)
    optimizer = md.DistributedOptimizer(plain)
    again = md.DistributedOptimizer(optimizer)
    assert isinstance(again, torch.optim.SGD)
    loss_of(model, md.rank()).backward()
    again.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank))
