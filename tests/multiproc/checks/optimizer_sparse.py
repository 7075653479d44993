"""DistributedOptimizer and sparse gradients: rows are gathered, duplicates added up."""

from __future__ import annotations

from typing import Any

import torch

import mydist as md
from multiproc.checks.models import (
    PassThrough,
    average_gradients,
    expect_equal_parameters,
    expect_same_parameters,
    raises,
    unchecked,
    wrapped,
)
from multiproc.registry import check


def table(rows: int = 6) -> torch.nn.Embedding:
    torch.manual_seed(0)
    return torch.nn.Embedding(rows, 2, sparse=True).double()


def rows_of(rank: int, step: int = 0) -> torch.Tensor:
    """What a rank looks up: another number of rows on each, some more than once."""
    return torch.tensor([rank % 6, 5, 5, *[(step + i) % 6 for i in range(rank)]])


def look_up(model: torch.nn.Module, rank: int, step: int = 0) -> torch.Tensor:
    return (model(rows_of(rank, step)) * (rank + 1.0)).sum()


def dense_gradient(ranks: list[int], step: int = 0) -> torch.Tensor:
    """The sum over `ranks` of the gradients of look_up, without any autograd."""
    total = torch.zeros(6, 2, dtype=torch.float64)
    for rank in ranks:
        for row in rows_of(rank, step):
            total[row] += rank + 1.0
    return total


def everyone() -> list[int]:
    return list(range(md.size()))


@check(cases=[("Average",), ("Sum",)])
def rows_are_gathered(op: str) -> None:
    model = table()
    optimizer = wrapped(model, op=getattr(md, op))
    for step in range(3):  # The second time the names are known.
        optimizer.zero_grad()
        look_up(model, md.rank(), step).backward()
        optimizer.synchronize()
        gradient = model.weight.grad
        assert gradient is not None and gradient.is_sparse
        if md.size() > 1:
            assert gradient.is_coalesced()
            touched = {int(row) for rank in everyone() for row in rows_of(rank, step)}
            assert gradient.indices()[0].tolist() == sorted(touched)
        divisor = md.size() if op == "Average" else 1
        wanted = dense_gradient(everyone(), step) / divisor
        torch.testing.assert_close(gradient.to_dense(), wanted, rtol=1e-14, atol=0)
        with optimizer.skip_synchronize():
            optimizer.step()
    expect_equal_parameters(model)


@check(min_size=2)
def predivide_scales_sparse_gradients_too() -> None:
    model = table()
    optimizer = wrapped(model, gradient_predivide_factor=4.0)
    look_up(model, md.rank()).backward()
    optimizer.synchronize()
    assert model.weight.grad is not None
    wanted = dense_gradient(everyone()) / md.size()
    torch.testing.assert_close(model.weight.grad.to_dense(), wanted, rtol=1e-14, atol=0)


@check()
def sparse_adam_as_in_one_process() -> None:
    model, reference = table(), table()
    optimizer = md.DistributedOptimizer(torch.optim.SparseAdam(model.parameters(), lr=0.1))
    plain = torch.optim.SparseAdam(reference.parameters(), lr=0.1)
    for step in range(4):
        optimizer.zero_grad()
        look_up(model, md.rank(), step).backward()
        optimizer.step()
        average_gradients(
            reference, lambda rank, step=step: look_up(reference, rank, step), everyone()
        )
        plain.step()
    expect_same_parameters(model, reference)
    expect_equal_parameters(model)


@check()
def several_backwards_of_embedding_bags() -> None:
    torch.manual_seed(0)
    bag = torch.nn.EmbeddingBag(6, 2, mode="sum", sparse=True).double()
    optimizer = wrapped(bag, backward_passes_per_step=2)
    for step in (0, 1):
        rows = rows_of(md.rank(), step)
        (bag(rows, torch.tensor([0])) * (md.rank() + 1.0)).sum().backward()
    optimizer.synchronize()
    assert bag.weight.grad is not None
    wanted = (dense_gradient(everyone(), 0) + dense_gradient(everyone(), 1)) / md.size()
    torch.testing.assert_close(bag.weight.grad.to_dense(), wanted, rtol=1e-14, atol=0)


@check(min_size=2)
def a_rank_without_a_gradient_contributes_no_rows() -> None:
    model = table()
    optimizer = wrapped(model)
    look_up(model, md.rank()).backward()
    optimizer.step()  # Every rank has seen by now that the gradient is sparse.
    optimizer.zero_grad()
    if md.rank() != 0:
        look_up(model, md.rank()).backward()
    optimizer.synchronize()
    assert model.weight.grad is not None and model.weight.grad.is_sparse
    wanted = dense_gradient(everyone()[1:]) / md.size()
    torch.testing.assert_close(model.weight.grad.to_dense(), wanted, rtol=1e-14, atol=0)
    optimizer.zero_grad()
    optimizer.synchronize()  # No rank has one.
    assert model.weight.grad is not None and model.weight.grad._nnz() == 0
    with optimizer.skip_synchronize():
        optimizer.step()
    expect_equal_parameters(model)


@check(min_size=2)
def a_rank_that_never_had_a_gradient_is_an_error_everywhere() -> None:
    model = torch.nn.ModuleDict({"words": table()})
    optimizer = wrapped(model)
    if md.rank() != 0:
        look_up(model["words"], md.rank()).backward()
    hint = "Use the layer on every rank in the first step"
    raises(optimizer.step, "'words.weight'", "sparse", hint, kind=md.MismatchError)
    # After one step in which all of them use it, it is fine.
    optimizer.zero_grad()
    look_up(model["words"], md.rank()).backward()
    optimizer.synchronize()
    gradient = model["words"].weight.grad
    torch.testing.assert_close(
        gradient.to_dense(), dense_gradient(everyone()) / md.size(), rtol=1e-14, atol=0
    )


@check(min_size=2)
def tables_of_different_length_are_an_error_everywhere() -> None:
    model = table(7 if md.rank() == 0 else 6)
    with unchecked():
        optimizer = wrapped(model)
    look_up(model, md.rank()).backward()
    raises(optimizer.step, "weight", "[7, 2]", "[6, 2]", kind=md.MismatchError)
    other = table()
    optimizer = wrapped(other)
    look_up(other, md.rank()).backward()
    optimizer.synchronize()
    assert other.weight.grad is not None
    torch.testing.assert_close(other.weight.grad.to_dense(), dense_gradient(everyone()) / md.size())


@check(min_size=2)
def dense_and_sparse_layers_together() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(table(), torch.nn.Linear(2, 3).double())
    reference = torch.nn.Sequential(table(), torch.nn.Linear(2, 3).double())
    reference.load_state_dict(model.state_dict())
    optimizer = wrapped(model)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        model(rows_of(md.rank(), step)).pow(2).sum().backward()
        optimizer.step()
        average_gradients(
            reference,
            lambda rank, step=step: reference(rows_of(rank, step)).pow(2).sum(),
            everyone(),
        )
        plain.step()
    expect_same_parameters(model, reference)


@check(min_size=2, cases=[("fp16",), ("bf16",)])
def compression_applies_to_the_values(kind: str) -> None:
    model = table()
    optimizer = wrapped(model, compression=getattr(md.Compression, kind))
    (model(rows_of(md.rank())) * (1 / 3)).sum().backward()
    optimizer.synchronize()
    gradient = model.weight.grad
    assert gradient is not None and gradient.dtype == torch.float64
    third = torch.tensor(1 / 3).to(torch.float16 if kind == "fp16" else torch.bfloat16).double()
    alone = md.size() - 1  # Only the highest rank looks this row up once, of ranks below 5.
    counts = sum((rows_of(rank) == alone).sum() for rank in everyone())
    torch.testing.assert_close(gradient.to_dense()[alone, 0], counts * third / md.size())
    assert not torch.equal(third, torch.tensor(1 / 3, dtype=torch.float64))


REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "Max": ({"op": md.Max}, ["op Max", "Average and Sum"]),
    "Product": ({"op": md.Product}, ["op Product", "Average and Sum"]),
    "group": (
        {"groups": 1},
        ["its group is reduced as one dense buffer", "leave it out of `groups`"],
    ),
    "compressor": ({"compression": PassThrough}, ["compressor", "Compression.none"]),
}


@check(min_size=2, cases=[(case,) for case in REFUSED])
def refused_with_a_reason(case: str) -> None:
    options, parts = REFUSED[case]
    model = table()
    optimizer = wrapped(model, **options)
    raises(lambda: look_up(model, md.rank()).backward(), "'weight'", "sparse_as_dense=True", *parts)
    del optimizer


@check(min_size=2)
def as_dense_whatever_else_is_asked_for() -> None:
    for options in ({"op": md.Max}, {"groups": 1}, {"compression": PassThrough}):
        model = table()
        optimizer = wrapped(model, sparse_as_dense=True, **options)
        look_up(model, md.rank()).backward()
        optimizer.synchronize()
        gradients = [dense_gradient([rank]) for rank in everyone()]
        stacked = torch.stack(gradients)
        wanted = stacked.amax(0) if options.get("op") == md.Max else stacked.mean(0)
        assert model.weight.grad is not None and not model.weight.grad.is_sparse
        torch.testing.assert_close(model.weight.grad, wanted)
        del optimizer
