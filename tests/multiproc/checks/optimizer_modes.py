"""DistributedOptimizer: accumulation, clipping, closures, schedulers, AMP, later parameters."""

from __future__ import annotations

import copy
import io
import math
import pickle
import warnings
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
    return md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1),
        named_parameters=model.named_parameters(),
        **options,
    )


class PassThrough(md.Compressor):
    """Takes the Python path without changing anything."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        return tensor, None

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor


PATHS = [("native", md.Compression.none), ("python", PassThrough)]
COMPRESSIONS = dict(PATHS)
BY_PATH = [(name,) for name, _ in PATHS]


@check(cases=BY_PATH)
def several_backwards_are_summed(path: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, backward_passes_per_step=3, compression=COMPRESSIONS[path])
    for step in range(2):
        optimizer.zero_grad()
        for part in range(3):
            loss_of(model, md.rank(), 10 * step + part).backward()
        optimizer.synchronize()

        def summed(rank: int, step: int = step) -> torch.Tensor:
            return sum(
                (loss_of(model, rank, 10 * step + part) for part in range(3)), torch.tensor(0.0)
            )

        expect_average(model, summed)
        with optimizer.skip_synchronize():
            optimizer.step()
    optimizer.set_backward_passes_per_step(1)
    optimizer.zero_grad()
    loss_of(model, md.rank()).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank))


@check(cases=BY_PATH)
def no_sync_accumulates(path: str) -> None:
    model = tiny_model()
    optimizer = wrapped(model, compression=COMPRESSIONS[path])
    with optimizer.no_sync():
        loss_of(model, md.rank(), 0).backward()
        with optimizer.no_sync():
            loss_of(model, md.rank(), 1).backward()
    loss_of(model, md.rank(), 2).backward()
    optimizer.synchronize()
    expect_average(
        model, lambda rank: sum((loss_of(model, rank, s) for s in range(3)), torch.tensor(0.0))
    )


@check()
def no_sync_then_step_reduces_what_was_accumulated() -> None:
    model = tiny_model()
    optimizer = wrapped(model)
    with optimizer.no_sync():
        loss_of(model, md.rank()).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank))


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
def clipping_by_hand_with_skip_synchronize() -> None:
    model = tiny_model()
    optimizer = wrapped(model, op=md.Sum)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, md.rank(), step).backward()
            optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.01)
            clipped = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            with optimizer.skip_synchronize():
                optimizer.step()
            for p, kept in zip(model.parameters(), clipped, strict=True):
                assert p.grad is not None and torch.equal(p.grad, kept), "reduced twice"
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


@check()
def closure_is_synchronized() -> None:
    model = tiny_model()
    optimizer = wrapped(model)
    for step in range(3):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, md.rank(), step)
            loss.backward()
            return loss

        own = loss_of(model, md.rank(), step).item()
        assert optimizer.step(closure).item() == own
    expect_equal_parameters(model)


@check(cases=[("before",), ("after",)])
def learning_rate_schedulers(made: str) -> None:
    model = tiny_model()
    plain = torch.optim.SGD(model.parameters(), lr=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if made == "before":
            scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, gamma=0.5)
            optimizer = md.DistributedOptimizer(plain)
        else:
            optimizer = md.DistributedOptimizer(plain)
            scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for step in range(3):
            optimizer.zero_grad()
            loss_of(model, md.rank(), step).backward()
            optimizer.step()
            scheduler.step()
            assert optimizer.param_groups[0]["lr"] == 0.5 ** (step + 1)
    expect_equal_parameters(model)
    # A scheduler goes on working after the state has been loaded.
    optimizer.load_state_dict(optimizer.state_dict())
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.5**4


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
def frozen_parameters_and_unfreezing() -> None:
    model = tiny_model()
    for p in model[0].parameters():
        p.requires_grad_(False)
    optimizer = wrapped(model)
    loss_of(model, md.rank()).backward()
    optimizer.step()
    assert all(p.grad is None for p in model[0].parameters())
    for p in model[0].parameters():
        p.requires_grad_(True)
    optimizer.zero_grad()
    loss_of(model, md.rank(), 1).backward()
    optimizer.synchronize()
    expect_average(model, lambda rank: loss_of(model, rank, 1))
    with optimizer.skip_synchronize():
        optimizer.step()
    expect_equal_parameters(model)


@check(cases=BY_PATH)
def sparse_gradients_as_dense(path: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Embedding(6, 2, sparse=True).double()
    optimizer = wrapped(model, sparse_as_dense=True, compression=COMPRESSIONS[path])
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.tensor([md.rank(), 5])).sum().backward()
        optimizer.synchronize()
        wanted = torch.zeros(6, 2, dtype=torch.float64)
        for rank in range(md.size()):
            wanted[rank] += 1 / md.size()
            wanted[5] += 1 / md.size()
        assert model.weight.grad is not None and not model.weight.grad.is_sparse
        torch.testing.assert_close(model.weight.grad, wanted)
        with optimizer.skip_synchronize():
            optimizer.step()
    expect_equal_parameters(model)


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


@check()
def two_optimizers_at_once() -> None:
    first, second = tiny_model(1), tiny_model(2)
    optimizers = [
        md.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            named_parameters=[(f"{prefix}.{n}", p) for n, p in model.named_parameters()],
        )
        for prefix, model in (("first", first), ("second", second))
    ]
    (loss_of(first, md.rank()) + loss_of(second, md.rank())).backward()
    for optimizer in optimizers:
        optimizer.step()
    expect_equal_parameters(first)
    expect_equal_parameters(second)
