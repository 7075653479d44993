"""Each row of docs/migration.md that compares mydist with mydist.horovod, shown on both sides."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

import mydist as md
import mydist.horovod.torch as hvd
from multiproc.checks.horovod import begin, gradient_of, of_all, values
from multiproc.checks.models import checked_every, raises
from multiproc.reference import raw
from multiproc.registry import check
from mydist.horovod.common import process_sets

# What the first column says, in the order of the page.
ROWS: list[str] = []
_numbers = itertools.count()


def row(text: str, min_size: int = 1) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Registers a check for the row whose first column says `text`."""
    ROWS.append(text)

    def register(function: Callable[[], None]) -> Callable[[], None]:
        def begun() -> None:
            begin()
            function()

        begun.__name__, begun.__module__ = function.__name__, function.__module__
        check(min_size=min_size)(begun)
        return function

    return register


def wrapped(library: Any, **settings: Any) -> tuple[Any, torch.nn.Linear]:
    """A new model, equal on all ranks, and its optimizer."""
    torch.manual_seed(3)
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return library.DistributedOptimizer(optimizer, model.named_parameters(), **settings), model


def fresh() -> str:
    return f"row {next(_numbers)}"


@row("fourth argument of `allreduce`")
def row_fourth_argument() -> None:
    ones = torch.ones(2)
    assert md.allreduce(ones, None, None, md.Sum)[0] == md.size()
    half = hvd.allreduce(ones, None, None, hvd.Compression.fp16)
    assert (half.dtype, half[0]) == (torch.float32, 1.0)


@row("`Average`, `Sum` and the like")
def row_ops() -> None:
    assert isinstance(md.Product, md.ReduceOp)
    assert md.Product != 5
    assert (hvd.Average, hvd.Sum, hvd.Adasum, hvd.Min, hvd.Max, hvd.Product) == tuple(range(6))


@row("`op` that does not fit")
def row_wrong_op() -> None:
    ones = torch.ones(md.size())
    wrong: Any = 17
    raises(lambda: md.allreduce(ones, op=wrong), "op is 17", kind=TypeError)
    raises(lambda: md.reducescatter(ones, op=md.Adasum), "Adasum")
    kind = hvd.HorovodInternalError
    for op in (17, -1):
        raises(lambda op=op: hvd.allreduce(ones, op=op), "not supported", kind=kind)
    raises(lambda: hvd.reducescatter(ones, op=hvd.Adasum), "Adasum", kind=kind)


@row("gradient of `allgather`, `broadcast`, `reducescatter`")
def row_gradients() -> None:
    mine, _, weights = gradient_of(md.allgather, 2, 3)
    theirs, _, _ = gradient_of(hvd.allgather, 2, 3)
    total = np.sum(weights, axis=0)[2 * md.rank() : 2 * md.rank() + 2]
    np.testing.assert_allclose(mine.numpy(), total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(theirs.numpy(), total / md.size(), rtol=1e-5, atol=1e-6)
    mine, _, weights = gradient_of(lambda x: md.broadcast(x, 0), 2, 3)
    theirs, _, _ = gradient_of(lambda x: hvd.broadcast(x, 0), 2, 3)
    total = np.sum(weights, axis=0) * (md.rank() == 0)
    np.testing.assert_allclose(mine.numpy(), total, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(theirs.numpy(), total / md.size(), rtol=1e-5, atol=1e-6)
    mine, _, weights = gradient_of(lambda x: md.reducescatter(x, op=md.Average), md.size(), 3)
    theirs, _, _ = gradient_of(lambda x: hvd.reducescatter(x, op=hvd.Average), md.size(), 3)
    total = np.concatenate(weights)
    np.testing.assert_allclose(mine.numpy(), total / md.size(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(theirs.numpy(), total, rtol=1e-5, atol=1e-6)


@row("`prescale_factor`, `postscale_factor`, the division of an average")
def row_factors() -> None:
    given = {"prescale_factor": 1 / 3, "postscale_factor": 2.7}
    mine = values(md.rank(), 1001)
    total = np.zeros(1001, np.float32)
    for value in of_all(1001):
        total += value * np.float32(1 / 3)
    expected = torch.from_numpy(total * np.float32(2.7))
    assert raw(hvd.allreduce(mine, op=hvd.Sum, **given)) == raw(expected)
    result = md.allreduce(mine, op=md.Sum, **given)
    once = np.sum(of_all(1001), axis=0, dtype=np.float64) / 3 * 2.7
    np.testing.assert_allclose(result.numpy(), once, rtol=1e-6, atol=1e-6)
    assert raw(result) != raw(expected)


@row("factors that differ between ranks", min_size=2)
def row_factors_of_ranks() -> None:
    ones, factor = torch.ones(2), 1.0 + md.rank()
    raises(
        lambda: md.allreduce(ones, prescale_factor=factor, op=md.Sum),
        "scale factors",
        kind=md.MismatchError,
    )
    total = md.size() * (md.size() + 1) / 2
    assert hvd.allreduce(ones, prescale_factor=factor, op=hvd.Sum)[0] == total


@row("average of integers")
def row_integers() -> None:
    large = torch.full((2,), 200, dtype=torch.uint8)
    negative = torch.tensor([-3]) * (md.rank() + 1)
    mean = int(-3 * (md.size() + 1) / 2)  # Towards zero.
    for library in (md, hvd):
        assert library.allreduce(large, op=library.Average).tolist() == [200, 200]
        assert library.allreduce(negative, op=library.Average).item() == mean


@row("`sparse_allreduce_async`")
def row_sparse() -> None:
    tensor = torch.sparse_coo_tensor([[0, 1]], [1.0, 2.0], (9,))
    mine = md.synchronize(md.sparse_allreduce_async(tensor, fresh(), md.Sum))
    theirs = hvd.sparse_allreduce_async(tensor, fresh(), hvd.Sum)()
    assert mine.is_coalesced() and mine._nnz() == 2
    assert not theirs.is_coalesced() and theirs._nnz() == 2 * md.size()
    assert raw(mine.to_dense()) == raw(theirs.to_dense())


@row("`alltoall_async` without `splits`")
def row_alltoall() -> None:
    rows = torch.ones(md.size())
    assert torch.is_tensor(md.synchronize(md.alltoall_async(rows)))
    result, received = hvd.synchronize(hvd.alltoall_async(rows))
    assert result.tolist() == [1.0] * md.size()
    assert received.tolist() == [1] * md.size()


@row("`splits` of `alltoall` that leave rows over")
def row_rows_left() -> None:
    rows, splits = torch.arange(md.size() + 2.0), [1] * md.size()
    raises(lambda: md.alltoall(rows, splits), "splits sum to")
    assert hvd.alltoall(rows, splits)[0].tolist() == [float(md.rank())] * md.size()


@row("`synchronize` of a used handle")
def row_used_handle() -> None:
    for library in (md, hvd):
        handle = library.allreduce_async(torch.ones(2))
        library.synchronize(handle)
        if library is md:
            raises(lambda handle=handle: md.synchronize(handle), "already synchronized")
        else:
            assert hvd.synchronize(handle) is None


@row("grouped results")
def row_groups() -> None:
    def kinds(library: Any) -> list[type]:
        tensor = torch.ones(md.size())
        return [
            type(library.grouped_allreduce([tensor])),
            type(library.grouped_reducescatter([tensor])),
            type(library.grouped_allreduce_([tensor.clone()])),
            type(library.grouped_allgather([tensor])),
        ]

    assert kinds(md) == [list] * 4
    assert kinds(hvd) == [list, list, tuple, tuple]


@row("a tensor that is not contiguous")
def row_not_contiguous() -> None:
    turned = torch.ones(3, 2).t()
    assert md.allreduce(turned).shape == (2, 3)
    raises(lambda: hvd.allreduce(turned), "required to be contiguous")


@row("a tensor that requires grad, in place")
def row_in_place() -> None:
    leaf = torch.ones(2, requires_grad=True)
    raises(lambda: md.allreduce_(leaf), "requires grad")
    assert hvd.allreduce_(leaf, op=hvd.Sum) is leaf
    assert leaf[0] == md.size()


@row("a dtype that is not supported")
def row_dtype() -> None:
    tensor = torch.ones(2).to(torch.uint16)
    raises(lambda: md.allreduce(tensor), "uint16 is not supported", kind=TypeError)
    raises(lambda: hvd.allreduce(tensor), "Tensor type torch.UInt16Tensor is not supported")


@row("one name for an allreduce and an allgather at once", min_size=2)
def row_one_name() -> None:
    name, ones = fresh(), torch.ones(2)
    # Rank 0 comes last, so the name is in use on all others.
    if md.rank() > 0:
        handle = md.allreduce_async(ones, name=name)
        raises(lambda: md.allgather_async(ones, name), "in flight")
    md.broadcast(torch.zeros(1), 1, name="row gate")
    assert (md.synchronize(handle) if md.rank() > 0 else md.allreduce(ones, name=name))[0] == 1.0
    handle = hvd.allreduce_async(ones, name=name)
    assert len(hvd.allgather(ones, name)) == 2 * md.size()
    hvd.synchronize(handle)


@row('`name=""`')
def row_empty_name() -> None:
    raises(lambda: md.allreduce(torch.ones(2), name=""), "name is empty")
    assert hvd.allreduce(torch.ones(2), name="")[0] == 1.0


@row("`Compression.bf16`")
def row_bf16() -> None:
    assert md.allreduce(torch.ones(2), compression=md.Compression.bf16)[0] == 1.0
    assert not hasattr(hvd.Compression, "bf16")


@row("`broadcast_optimizer_state` of a fresh optimizer")
def row_fresh_state() -> None:
    for library, steps in ((md, None), (hvd, 1)):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.Adam(model.parameters())
        library.broadcast_optimizer_state(optimizer, 0)
        assert optimizer.state.get(model.weight, {}).get("step") == steps


@row("`broadcast_parameters`")
def row_parameters() -> None:
    bare: Any = [values(md.rank(), 3)]
    raises(lambda: md.broadcast_parameters(bare, 0), "expected (name, tensor) pairs")
    hvd.broadcast_parameters(bare, 0)
    assert raw(bare[0]) == raw(values(0, 3))
    # Both leave out None.
    for library in (md, hvd):
        named: Any = [("a", values(md.rank(), 3)), ("nothing", None)]
        library.broadcast_parameters(named, 0)
        assert raw(named[0][1]) == raw(values(0, 3))


@row("`DistributedOptimizer`")
def row_optimizer() -> None:
    for library in (md, hvd):
        model = torch.nn.Linear(2, 2)
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        inner.state[model.weight]["momentum_buffer"] = torch.ones(2, 2)
        with checked_every(0):
            optimizer = library.DistributedOptimizer(inner, model.named_parameters())
        assert (model.weight in optimizer.state) == (library is md)
        with torch.no_grad():
            model.weight.fill_(md.rank())
            model.bias.fill_(0.0)
        model(torch.ones(1, 2)).sum().backward()
        if library is md and md.size() > 1:
            raises(optimizer.step, "weight", kind=md.MismatchError)
        else:
            optimizer.step()


@row("`DistributedOptimizer` of `LBFGS`")
def row_lbfgs() -> None:
    parameters = list(torch.nn.Linear(2, 2).parameters())
    raises(lambda: md.DistributedOptimizer(torch.optim.LBFGS(parameters)), "LBFGS")
    assert isinstance(hvd.DistributedOptimizer(torch.optim.LBFGS(parameters)), torch.optim.LBFGS)


@row("ranks outside a process set", min_size=2)
def row_outside() -> None:
    part = md.add_process_set([0])
    if md.rank() == 0:
        wrapped(md, process_set=part)
    else:
        raises(lambda: wrapped(md, process_set=part), "is not in")
    md.remove_process_set(part)
    theirs = hvd.add_process_set([0])
    optimizer, model = wrapped(hvd, process_set=theirs)
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model.weight)
    hvd.remove_process_set(theirs)


@row("a `ProcessSet` that was not added")
def row_new_set() -> None:
    mine, theirs = md.ProcessSet([0]), hvd.ProcessSet([0])
    assert mine.size() == 1
    raises(lambda: mine.process_set_id, "is not part of the job")
    assert (theirs.size(), theirs.rank(), theirs.process_set_id) == (None, None, None)
    raises(lambda: md.ProcessSet(["a"]), "expected an int", kind=TypeError)  # type: ignore[list-item]
    raises(lambda: hvd.ProcessSet(["a"]), "list of process ranks")


@row("`remove_process_set` of the global set")
def row_global_set() -> None:
    raises(lambda: md.remove_process_set(md.global_process_set), "cannot be removed")
    assert hvd.remove_process_set(hvd.global_process_set) is False


@contextmanager
def sets_that_stay() -> Any:
    process_sets._may_change = False
    try:
        yield
    finally:
        process_sets._may_change = True


@row("`add_process_set` after `init()`", min_size=2)
def row_dynamic_sets() -> None:
    with sets_that_stay():
        raises(lambda: hvd.add_process_set([0]), "HOROVOD_DYNAMIC_PROCESS_SETS=1")
        mine = md.add_process_set([0])
    md.remove_process_set(mine)
    assert hvd.remove_process_set(hvd.add_process_set([0]))


@row("mistakes of the optimizer's user", min_size=2)
def row_mistakes() -> None:
    for library, kind in ((md, ValueError), (hvd, AssertionError)):
        optimizer, model = wrapped(library)
        model(torch.ones(1, 2)).sum().backward()
        raises(optimizer.zero_grad, "zero_grad", kind=kind)
        optimizer.synchronize()
        with optimizer.skip_synchronize():
            optimizer.step()
