"""Strategies with the rest of the optimizer: accumulation, clipping, closures, sparse gradients,
compression, schedulers, and what they refuse."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import StepLR

import mydist as md
from multiproc.checks.lifetimes import no_collection
from multiproc.checks.models import PassThrough, raises, tiny_model, wrapped
from multiproc.checks.strategy_models import (
    BY_NAME,
    STRATEGIES,
    Trained,
    expect_all_near,
    expect_equal_ranks,
    mean,
    plain_steps,
    real,
    snapshot,
)
from multiproc.reference import expect_near, raw
from multiproc.registry import check


def two_passes(trained: Trained) -> None:
    trained.backward()
    trained.backward()
    trained.optimizer.step()


def without_sync(trained: Trained) -> None:
    if hasattr(trained.optimizer, "no_sync"):
        with trained.optimizer.no_sync():
            trained.backward()
    else:
        trained.backward()
    trained.backward()
    trained.optimizer.step()


def clipped(trained: Trained) -> None:
    trained.backward()
    if hasattr(trained.optimizer, "clip_grad_norm_"):
        norm = trained.optimizer.clip_grad_norm_(0.1)
    else:
        norm = torch.nn.utils.clip_grad_norm_(trained.model.parameters(), 0.1)
    assert norm > 0.1
    trained.optimizer.step()


def by_hand(trained: Trained) -> None:
    trained.backward()
    synchronizes = hasattr(trained.optimizer, "synchronize")
    if synchronizes:
        trained.optimizer.synchronize()
    torch.nn.utils.clip_grad_norm_(trained.model.parameters(), 0.1)
    if not synchronizes:
        trained.optimizer.step()
        return
    with trained.optimizer.skip_synchronize():
        trained.optimizer.step()


def with_closure(trained: Trained) -> None:
    def closure() -> torch.Tensor:
        trained.optimizer.zero_grad()
        trained.backward()
        return torch.tensor(7.0)

    assert trained.optimizer.step(closure) == 7.0


WAYS: dict[str, tuple[Callable[[Trained], None], dict[str, Any]]] = {
    "two passes": (two_passes, {"backward_passes_per_step": 2}),
    "no_sync": (without_sync, {}),
    "clip_grad_norm_": (clipped, {}),
    "skip_synchronize": (by_hand, {}),
    "closure": (with_closure, {}),
}


@check(cases=[(way,) for way in WAYS])
def a_local_step_is_that_of_the_plain_optimizer(way: str) -> None:
    step, options = WAYS[way]
    plain, trained = Trained(md.rank()), real(md.LocalSGD(None), **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            for one in (plain, trained):
                one.optimizer.zero_grad()
                step(one)
    assert [raw(t) for t in trained.tensors()] == [raw(t) for t in plain.tensors()]
    assert trained.optimizer._distribution.runs[0].steps == 4
    trained.optimizer.finish()
    expect_equal_ranks(trained)


@check(min_size=2, cases=[(way,) for way in WAYS])
def rounds_count_steps_whatever_they_are_made_of(way: str) -> None:
    """Three synchronous steps, then rounds of two: the fifth step ends the first of them."""
    step, options = WAYS[way]
    plain = real(None, prefix="plain.", **options)
    trained = real(md.PostLocalSGD(2, start=3), **options)
    for number in range(7):
        for one in (plain, trained):
            one.optimizer.zero_grad()
            step(one)
        weight = trained.model[0].weight
        assert (raw(weight) == raw(plain.model[0].weight)) == (number < 3), number
        equal = len(set(md.allgather_object(raw(weight)))) == 1
        assert equal == (number < 3 or number in (4, 6)), number
    trained.optimizer.finish()
    expect_equal_ranks(trained)


@check(min_size=2)
def a_switch_inside_no_sync_leaves_gradients_local() -> None:
    trained = real(md.PostLocalSGD(2, start=1))
    with trained.optimizer.no_sync():
        trained.step(2)
    trained.step()
    own = trained.model[0].weight.grad
    before = md.stats()["tensor_bytes"]
    trained.optimizer.zero_grad()
    trained.backward()
    assert trained.optimizer._distribution.paths[0].pending() == []
    assert md.stats()["tensor_bytes"] == before
    everyone = md.allgather_object(raw(own))
    assert len(set(everyone)) == md.size(), "the gradients of a local step were averaged"
    trained.optimizer.finish()  # Which no gradient under way forbids.
    expect_equal_ranks(trained)


@check(min_size=2, cases=[(number,) for number in (1, 2, 3)])
def finish_around_the_switch(number: int) -> None:
    trained = real(md.PostLocalSGD(2, start=2))
    trained.step(number)
    trained.optimizer.finish()
    expect_equal_ranks(trained)
    trained.step(3)
    assert trained.optimizer._distribution.runs[0].has_begun
    trained.optimizer.finish()
    expect_equal_ranks(trained)


def sparse_steps(name: str, optimizer: Any, table: torch.nn.Embedding, rank: int) -> None:
    for step in range(2):

        def closure(step: int = step) -> torch.Tensor:
            optimizer.zero_grad()
            rows = torch.tensor([rank % 5, (rank + step) % 5, 4])
            loss = (table(rows) * (rank + 1.0)).pow(2).sum()
            loss.backward()
            return loss

        if name == "dense with closure":
            optimizer.step(closure)
            continue
        closure()
        if name == "dense and clipped":
            optimizer.clip_grad_norm_(1.0) if hasattr(optimizer, "clip_grad_norm_") else (
                torch.nn.utils.clip_grad_norm_(table.parameters(), 1.0)
            )
        optimizer.step()


SPARSE: dict[str, type[torch.optim.Optimizer]] = {
    "SGD": torch.optim.SGD,
    "SparseAdam": torch.optim.SparseAdam,
    "dense": torch.optim.Adam,
    "dense with closure": torch.optim.Adam,
    "dense and clipped": torch.optim.Adam,
}


@check(cases=[(name,) for name in SPARSE])
def sparse_gradients(name: str) -> None:
    is_dense = name.startswith("dense")

    def table(sparse: bool) -> torch.nn.Embedding:
        torch.manual_seed(0)
        return torch.nn.Embedding(5, 3, sparse=sparse).double()

    mine = table(sparse=True)
    optimizer = md.DistributedOptimizer(
        SPARSE[name](mine.parameters(), lr=0.1),
        communication=md.LocalSGD(2),
        sparse_as_dense=is_dense,
    )
    sparse_steps(name, optimizer, mine, md.rank())
    of_ranks = []
    for rank in range(md.size()):
        other = table(sparse=not is_dense)
        sparse_steps(name, SPARSE[name](other.parameters(), lr=0.1), other, rank)
        of_ranks.append(other.weight)
    expect_near(mine.weight, mean(of_ranks), 1e-12, name)


class Halved(md.Compressor):
    """Written in Python; counts what it sees."""

    seen = 0

    @classmethod
    def compress(cls, tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        cls.seen += tensor.numel()
        return tensor.bfloat16(), tensor.dtype

    @classmethod
    def decompress(cls, tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        return tensor.to(ctx)


COMPRESSIONS: dict[str, tuple[Any, float]] = {
    "fp16": (md.Compression.fp16, 2**-10),
    "bf16": (md.Compression.bf16, 2**-7),
    "python": (Halved, 2**-7),
    "unchanged": (PassThrough, 1e-12),
}


@check(min_size=2, cases=[(name,) for name in COMPRESSIONS])
def compression_loses_part_of_a_change_and_nothing_of_the_model(name: str) -> None:
    compression, loss = COMPRESSIONS[name]
    trained, exact = real(md.LocalSGD(3), compression=compression), real(md.LocalSGD(3))
    start = [p.detach().clone() for p in trained.model.parameters()]
    Halved.seen = 0
    trained.step(3)
    exact.step(3)
    expect_equal_ranks(trained)
    alone = [list(plain_steps(rank, 3).model.parameters()) for rank in range(md.size())]
    parameters = zip(trained.model.parameters(), exact.model.parameters(), start, strict=True)
    differs = False
    for index, (got, wanted, begin) in enumerate(parameters):
        moved = sum((other[index] - begin).abs().max() for other in alone)
        worst = (got - wanted).abs().max()
        assert worst <= loss * moved + 1e-12, f"{index}: {worst} of {moved}"
        differs = differs or bool(worst > 1e-9)
    assert differs == (name != "unchanged")
    count = sum(p.numel() for p in trained.model.parameters())
    assert Halved.seen == (count if name == "python" else 0)
    for mine, wanted in zip(trained.model.buffers(), exact.model.buffers(), strict=True):
        expect_near(mine, wanted, 1e-12, "buffers are never compressed")


@check(cases=[("before",), ("after",)])
def schedulers(order: str) -> None:
    plain = Trained(md.rank())
    inner = torch.optim.SGD([torch.zeros(1)], lr=0.1)

    def wrap(model: torch.nn.Module, made: torch.optim.Optimizer) -> Any:
        nonlocal scheduler
        if order == "before":
            scheduler = StepLR(made, 1, gamma=0.5)
        optimizer = md.DistributedOptimizer(made, communication=md.LocalSGD(None))
        if order == "after":
            scheduler = StepLR(optimizer, 1, gamma=0.5)
        return optimizer

    scheduler = StepLR(inner, 1)
    trained = Trained(md.rank(), wrap)
    other = StepLR(plain.optimizer, 1, gamma=0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "lr_scheduler.step() before optimizer.step()", say.
        for _ in range(3):
            trained.step()
            scheduler.step()
            plain.step()
            other.step()
    assert scheduler.get_last_lr() == other.get_last_lr() == [0.1 / 8]
    assert [raw(t) for t in trained.tensors()] == [raw(t) for t in plain.tensors()]
    trained.optimizer.finish()


@check(min_size=2)
def complex_parameters_are_averaged() -> None:
    start = torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex128)
    parameter = torch.nn.Parameter(start.clone())
    inner = torch.optim.SGD([parameter], lr=0.5, momentum=0.5)
    optimizer = md.DistributedOptimizer(inner, communication=md.LocalSGD(1, momentum="average"))
    gradient = torch.tensor([1j, 1.0], dtype=torch.complex128)
    parameter.grad = gradient * (md.rank() + 1)
    optimizer.step()
    middle = gradient * sum(range(1, md.size() + 1)) / md.size()
    for got, wanted in (
        (parameter, start - 0.5 * middle),
        (inner.state[parameter]["momentum_buffer"], middle),
    ):
        expect_near(torch.view_as_real(got.detach()), torch.view_as_real(wanted), 1e-12, "complex")


@check(cases=BY_NAME)
def parameters_change_in_step_and_finish_only(name: str) -> None:
    trained = real(STRATEGIES[name]())

    def versions() -> list[int]:
        return [p._version for p in trained.model.parameters()]

    trained.step(2)
    for _ in range(5):
        before = versions()
        trained.optimizer.zero_grad()
        trained.backward()
        trained.optimizer.state_dict()
        trained.optimizer.rank_state_dict()
        trained.optimizer.synchronize()
        trained.optimizer.clip_grad_norm_(1.0)
        md.explain()
        assert versions() == before
        with trained.optimizer.skip_synchronize():
            trained.optimizer.step()
        assert all(now > then for now, then in zip(versions(), before, strict=True))
    trained.optimizer.finish()


@check(cases=BY_NAME)
def a_dropped_optimizer_ends_without_a_collection(name: str) -> None:
    with no_collection():
        trained = real(STRATEGIES[name]())
        trained.step(8)  # With a mean under way, where means take time.
        watched = [
            weakref.ref(item)
            for item in (
                trained.optimizer,
                trained.optimizer._distribution.runs[0],
                trained.optimizer._distribution.runs[0].strategy,
                trained.optimizer._distribution.runs[0].job,
            )
        ]
        md.barrier()
        del trained
        assert [item() for item in watched] == [None] * 4


@check()
def what_a_strategy_cannot_use_is_refused() -> None:
    model = tiny_model()
    local = md.LocalSGD(4)
    synchronous = {"0.*": md.SynchronousGradients(), "*": md.SynchronousGradients()}
    for options, word in (
        ({"groups": 2}, "groups"),
        ({"groups": [[model[0].weight, model[0].bias]]}, "groups"),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor is 2.0"),
        ({"op": md.Sum}, "op is Sum"),
        ({"op": md.Adasum}, "op is Adasum"),
        ({"op": md.Max}, "op is Max"),
    ):
        for strategy in (local, md.LocalSGD(1), md.PostLocalSGD(2, start=10)):
            raises(
                lambda o=options, s=strategy: wrapped(model, communication=s, **o),
                word,
                f"communication={type(strategy).__name__}",
            )
        raises(
            lambda o=options: wrapped(model, communication=synchronous, **o),
            word,
            "communication=a dict of strategies",
        )
        wrapped(model, communication=md.SynchronousGradients(), **options)
    for wrong, *parts in (
        ("local", "'local' (str)"),
        (md.LocalSGD, "write LocalSGD(…)"),
        (8, "8 (int)"),
    ):
        raises(
            lambda w=wrong: wrapped(model, communication=w),
            "DistributedOptimizer: communication is",
            "expected a strategy such as mydist.LocalSGD(every=8), None, or a dict of strategies",
            *parts,
            kind=TypeError,
        )
    for buffers in (["a"], [("a", 1)], [torch.ones(1)]):
        raises(lambda b=buffers: wrapped(model, named_buffers=b, communication=local), "named_buff")
    raises(lambda: wrapped(model, communication=md.DiLoCo(10, fragments=5)).step(), "4 parameters")
    md.barrier()


@check()
def samples_are_counted() -> None:
    trained = real(md.LocalSGD(2, weighted=True))
    for count in (-1, 1.5, True, "3", None):
        raises(lambda c=count: trained.optimizer.count_samples(c), "count_samples", repr(count))
    trained.optimizer.zero_grad()
    raises(trained.optimizer.step, "weighted=True", "optimizer.count_samples(n)")
    trained.step()
    raises(trained.optimizer.step, "weighted=True", "optimizer.count_samples(n)")
    trained.step()
    expect_equal_ranks(trained)
    before = snapshot(trained)
    for _ in range(2):  # Of ranks that have seen nothing, nothing counts.
        trained.optimizer.zero_grad()
        trained.backward()
        trained.optimizer._distribution.runs[0].job.samples = 0
        trained.optimizer.step()
    expect_all_near(snapshot(trained)[:6], before[:6], 0.0, "parameters")
