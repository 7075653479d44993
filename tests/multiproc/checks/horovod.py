"""`mydist.horovod.torch` on every rank: Horovod's numbers, gradients, fields and errors.

Expected numbers are made here by NumPy in the dtype that Horovod computes in. A deep run compares
the bits with the published package, where that is installed (multiproc/test_horovod.py).
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import torch

import mydist.horovod.torch as hvd
from multiproc.checks.models import raises
from multiproc.reference import raw
from multiproc.registry import check

_numbers = itertools.count()


def begin() -> None:
    """Of a job that mydist has begun already."""
    hvd.init(process_sets="dynamic")


def values(rank: int, *shape: int, seed: int = 0) -> torch.Tensor:
    """The same on any rank that asks for it."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * seed + rank))


def of_all(*shape: int, seed: int = 0) -> list[np.ndarray[Any, Any]]:
    return [values(rank, *shape, seed=seed).numpy() for rank in range(hvd.size())]


@check(cases=[(1.0, 1.0), (0.3, 1.0), (1.0, 0.7), (1 / 3, 2.7)])
def horovod_factors_are_multiplied_in_float32(before: float, after: float) -> None:
    begin()
    for op in (hvd.Average, hvd.Sum):
        factor = after / hvd.size() if op == hvd.Average else after
        total = np.zeros(1001, np.float32)
        for value in of_all(1001):
            total += value * np.float32(before)
        expected = torch.from_numpy(total * np.float32(factor))
        mine = values(hvd.rank(), 1001)
        given = {"op": op, "prescale_factor": before, "postscale_factor": after}
        assert raw(hvd.allreduce(mine, **given)) == raw(expected)
        assert raw(hvd.grouped_allreduce([mine, mine], **given)[1]) == raw(expected)
        assert raw(hvd.allreduce_(mine.clone(), **given)) == raw(expected)


@check()
def horovod_arguments_stand_in_its_order() -> None:
    begin()
    mine = values(hvd.rank(), 5)
    halves = np.sum([v.astype(np.float16) for v in of_all(5)], axis=0, dtype=np.float32)
    result = hvd.allreduce(mine, None, "order", hvd.Compression.fp16, hvd.Sum, 1.0, 1.0)
    np.testing.assert_allclose(result.numpy(), halves, rtol=2e-3, atol=2e-3)
    raises(lambda: hvd.allreduce(mine, average=True, op=hvd.Sum), "op parameter supersedes average")
    total = hvd.allreduce(mine, average=False)
    np.testing.assert_allclose(total.numpy(), sum(of_all(5)), rtol=1e-5, atol=1e-6)


@check()
def horovod_results_are_there_once_a_poll_says_so() -> None:
    begin()
    tensor = torch.full((3,), float(hvd.rank() + 1))
    handle = hvd.allreduce_async_(tensor, prescale_factor=0.5, name="one name")
    other = hvd.allgather_async(torch.ones(1), name="one name")
    while not hvd.poll(handle):
        pass
    assert tensor.tolist() == [0.25 * (hvd.size() + 1)] * 3
    assert hvd.synchronize(handle) is tensor
    assert hvd.synchronize(handle) is None
    assert len(hvd.synchronize(other)) == hvd.size()


@check()
def horovod_handles_are_used_up() -> None:
    begin()
    handle = hvd.allreduce_async(values(hvd.rank(), 5), op=hvd.Sum)
    assert hvd.synchronize(handle) is not None
    assert hvd.synchronize(handle) is None
    tensor = values(hvd.rank(), 5)
    assert hvd.synchronize(hvd.broadcast_async_(tensor, 0)) is tensor
    assert isinstance(hvd.synchronize(hvd.grouped_allgather_async([tensor, tensor])), tuple)


def gradient_of(call: Any, *shape: int) -> tuple[torch.Tensor, torch.Tensor, list[Any]]:
    """This rank's gradient through the call, its shape of output, and all ranks' weights."""
    x = values(hvd.rank(), *shape, seed=1).requires_grad_()
    y = call(x)
    weights = [values(rank, *y.shape, seed=2) for rank in range(hvd.size())]
    (y * weights[hvd.rank()]).sum().backward()
    assert x.grad is not None
    return x.grad, y, [w.numpy() for w in weights]


@check()
def horovod_gradients_are_means() -> None:
    begin()
    size, rank = hvd.size(), hvd.rank()
    mine, _, weights = gradient_of(hvd.allgather, 2, 3)
    mean = np.mean(weights, axis=0, dtype=np.float64)
    np.testing.assert_allclose(mine.numpy(), mean[2 * rank : 2 * rank + 2], rtol=1e-5, atol=1e-6)
    mine, _, weights = gradient_of(lambda x: hvd.broadcast(x, size - 1), 2, 3)
    mean = np.mean(weights, axis=0, dtype=np.float64) * (rank == size - 1)
    np.testing.assert_allclose(mine.numpy(), mean, rtol=1e-5, atol=1e-6)
    for op, factor in ((hvd.Average, 1), (hvd.Sum, size)):
        mine, _, weights = gradient_of(lambda x, o=op: hvd.reducescatter(x, op=o), 2 * size, 3)
        whole = np.concatenate(weights).astype(np.float64) * factor
        np.testing.assert_allclose(mine.numpy(), whole, rtol=1e-5, atol=1e-6)
    mine, _, weights = gradient_of(lambda x: hvd.allreduce(x, op=hvd.Sum), 2, 3)
    np.testing.assert_allclose(mine.numpy(), np.sum(weights, axis=0), rtol=1e-5, atol=1e-6)
    mine, _, weights = gradient_of(lambda x: hvd.grouped_allgather([x, x])[0], 1, 3)
    mean = np.mean(weights, axis=0, dtype=np.float64)
    np.testing.assert_allclose(mine.numpy(), mean[rank : rank + 1], rtol=1e-5, atol=1e-6)


@check()
def horovod_alltoall_tells_what_came() -> None:
    begin()
    size, rank = hvd.size(), hvd.rank()
    rows = torch.full((size,), float(rank))
    assert hvd.alltoall(rows).tolist() == [float(r) for r in range(size)]
    splits = torch.tensor([1] * size, dtype=torch.int64)
    got, received = hvd.alltoall(rows, splits)
    assert got.tolist() == [float(r) for r in range(size)]
    assert received.dtype == torch.int64
    assert received.tolist() == [1] * size
    output, received = hvd.synchronize(hvd.alltoall_async(rows))
    assert received.dtype == torch.int32
    if size > 1:
        raises(lambda: hvd.alltoall(torch.zeros(size + 1)), "evenly")


@check()
def horovod_reducescatter_refuses_adasum() -> None:
    begin()
    rows = torch.ones(hvd.size())
    raises(lambda: hvd.reducescatter(rows, op=hvd.Adasum), "Adasum", kind=hvd.HorovodInternalError)


TURNED = {
    "allreduce": hvd.allreduce,
    "grouped_allreduce": lambda t: hvd.grouped_allreduce([t])[0],
    "allgather": hvd.allgather,
    "grouped_allgather": lambda t: hvd.grouped_allgather([t])[0],
    "broadcast": lambda t: hvd.broadcast(t, 0),
    "alltoall": hvd.alltoall,
    "reducescatter": hvd.reducescatter,
    "grouped_reducescatter": lambda t: hvd.grouped_reducescatter([t])[0],
}


@check(min_size=2, cases=[(call,) for call in TURNED])
def horovod_call_that_one_rank_refuses_is_over_for_all(call: str) -> None:
    """As of mydist: no later call of that rank meets the others' call."""
    begin()
    run, rows = TURNED[call], torch.ones(hvd.size(), hvd.size())
    text = "required to be contiguous" if hvd.rank() == 0 else "a rank has refused its call"
    kind = ValueError if hvd.rank() == 0 else hvd.HorovodInternalError
    turned = torch.ones(hvd.size() + 1, hvd.size()).t()[:, : hvd.size()]
    raises(lambda: run(turned if hvd.rank() == 0 else rows), text, kind=kind)
    for number in (1.0, 2.0):
        assert bool((run(rows * number) == number).all())


@check(min_size=2)
def horovod_op_that_one_rank_refuses_is_over_for_all() -> None:
    begin()
    text = "op type not supported" if hvd.rank() == 0 else "a rank has refused its call"
    op = 17 if hvd.rank() == 0 else hvd.Sum
    raises(lambda: hvd.allreduce(torch.ones(2), op=op), text, kind=hvd.HorovodInternalError)
    assert hvd.allreduce(torch.ones(2), op=hvd.Sum)[0] == hvd.size()


@check()
def horovod_refuses_what_it_cannot_send() -> None:
    begin()
    sparse = torch.sparse_coo_tensor([[0]], [1.0], (3,))
    raises(lambda: hvd.allreduce(sparse), "Tensor type torch.sparse.FloatTensor is not supported")
    raises(lambda: hvd.broadcast(torch.ones(2), None), "root_rank is None", kind=TypeError)  # type: ignore[arg-type]
    raises(lambda: hvd.alltoall(torch.tensor(1.0)), "scalar")


@check()
def horovod_sparse_results_come_by_a_function() -> None:
    begin()
    tensor = torch.sparse_coo_tensor([[hvd.rank(), 7]], [1.0, 2.0], (9,))
    wait = hvd.sparse_allreduce_async(tensor, name=f"sparse.{next(_numbers)}", op=hvd.Average)
    assert callable(wait)
    dense = wait().to_dense()
    assert dense[7] == 2.0
    assert all(abs(float(dense[rank]) - 1 / hvd.size()) < 1e-6 for rank in range(hvd.size()))


@check(min_size=2)
def horovod_process_sets_are_registered_once() -> None:
    begin()
    assert hvd.global_process_set.ranks == list(range(hvd.size()))
    # All ranks but the last, for a set of every rank is the global one.
    members = list(range(hvd.size() - 1))
    part = hvd.ProcessSet(members)
    assert (part.process_set_id, part.size(), part.rank()) == (None, None, None)
    assert hvd.add_process_set(part) is part
    assert part.size() == len(members)
    for again in (members[::-1], range(hvd.size())):
        raises(lambda again=again: hvd.add_process_set(again), "duplicate process set")
    model = torch.nn.Linear(2, 2)
    # A rank outside the set makes one too, and steps alone.
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), process_set=part
    )
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    if part.included():
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum, process_set=part).item() == len(members)
    else:
        raises(lambda: part.rank(), "not part of provided process set")
    assert hvd.remove_process_set(part)
    assert not hvd.remove_process_set(part)
    assert not hvd.remove_process_set(hvd.global_process_set)
    assert part.process_set_id is None


@check()
def horovod_batch_norm_takes_a_batch_on_the_cpu() -> None:
    begin()
    batch = torch.arange(4.0).reshape(2, 2) + 4 * hvd.rank()
    whole = torch.arange(4.0 * hvd.size()).reshape(-1, 2)
    expected = torch.nn.BatchNorm1d(2)(whole)[2 * hvd.rank() :][:2]
    torch.testing.assert_close(hvd.SyncBatchNorm(2)(batch), expected)


def trained(rank: int, passes: int = 1, **settings: Any) -> tuple[Any, torch.nn.Linear]:
    begin()
    torch.manual_seed(3)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    wrapped = hvd.DistributedOptimizer(
        optimizer, model.named_parameters(), backward_passes_per_step=passes, **settings
    )
    hvd.broadcast_parameters(model.state_dict(), 0)
    hvd.broadcast_optimizer_state(wrapped, 0)
    for step in range(3):
        wrapped.zero_grad()
        for number in range(passes):
            loss(model, rank, step * passes + number).backward()
        wrapped.step()
    return wrapped, model


def loss(model: torch.nn.Module, rank: int, number: int) -> torch.Tensor:
    result: torch.Tensor = model(values(rank, 4, 3, seed=number)).square().mean()
    return result


@check(cases=[({}, 1), ({"groups": 1}, 1), ({"op": hvd.Sum}, 2), ({}, 3)])
def horovod_optimizer_trains_on_the_mean(settings: dict[str, Any], passes: int) -> None:
    optimizer, model = trained(hvd.rank(), passes, **settings)
    torch.manual_seed(3)
    reference = torch.nn.Linear(3, 2).double()
    alone = torch.optim.SGD(reference.parameters(), lr=0.1, momentum=0.9)
    factor = 1 if settings.get("op") == hvd.Sum else hvd.size()
    for step in range(3):
        alone.zero_grad()
        for rank, number in itertools.product(range(hvd.size()), range(passes)):
            data = values(rank, 4, 3, seed=step * passes + number).double()
            (reference(data).square().mean() / factor).backward()
        alone.step()
    for mine, expected in zip(model.parameters(), reference.parameters(), strict=True):
        np.testing.assert_allclose(
            mine.detach().numpy(), expected.detach().numpy(), rtol=1e-5, atol=1e-6
        )
    assert isinstance(optimizer, torch.optim.SGD)
    assert type(optimizer).__name__ == "SGD"
    assert set(optimizer._parameter_names.values()) == {"weight", "bias"}
    assert optimizer.backward_passes_per_step == passes


@check(min_size=2)
def horovod_optimizer_refuses_as_horovod_does() -> None:
    optimizer, model = trained(hvd.rank())
    loss(model, hvd.rank(), 9).backward()
    raises(
        lambda: optimizer.zero_grad(),
        "zero_grad() was called after loss.backward()",
        kind=AssertionError,
    )
    raises(
        lambda: loss(model, hvd.rank(), 9).backward(),
        "more than backward_passes_per_step times",
        kind=AssertionError,
    )
    optimizer.synchronize()
    with optimizer.skip_synchronize():
        optimizer.step()
    parameters = [("same", model.weight), ("same", model.bias)]
    raises(
        lambda: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), parameters),
        "Found duplicates: same",
    )
    raises(
        lambda: hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1), parameters[:1]),
        "were not named",
    )
    # No rank compares parameters with the others'.
    with torch.no_grad():
        model.weight.fill_(hvd.rank())
    other = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))
    loss(model, hvd.rank(), 1).backward()
    other.step()
    assert float(model.weight[0, 0].detach()) == hvd.rank()


@check(min_size=2)
def horovod_adasum_steps_on_every_rank() -> None:
    begin()
    torch.manual_seed(3)
    model = torch.nn.Linear(4, 1, bias=False)
    before = model.weight.detach().clone()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters(), op=hvd.Adasum
    )
    # Orthogonal steps are added.
    data = torch.eye(4)[hvd.rank() % 4].reshape(1, 4)
    model(data).sum().backward()
    optimizer.step()
    steps = sum(torch.eye(4)[rank % 4] for rank in range(min(hvd.size(), 4)))
    np.testing.assert_allclose((before - model.weight).detach()[0].numpy(), steps, atol=1e-6)
    raises(
        lambda: optimizer.skip_synchronize(), "not supported when using Adasum", kind=AssertionError
    )


@check()
def horovod_state_leaves_out_none() -> None:
    begin()
    tensor = values(hvd.rank(), 3)
    hvd.broadcast_parameters([("a", tensor), ("nothing", None)], 0)
    assert raw(tensor) == raw(values(0, 3))
    raises(lambda: hvd.broadcast_parameters("model", 0), "invalid params of type")
    model = torch.nn.Linear(2, 2)
    rate = 0.1 * (hvd.rank() + 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=(0.5, 0.6))
    hvd.broadcast_optimizer_state(optimizer, 0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert optimizer.param_groups[0]["betas"] == (0.5, 0.6)
    # Horovod's state comes of a step along zeros.
    assert optimizer.state[model.weight]["step"] == 1
    assert hvd.broadcast_object({"rank": hvd.rank()}) == {"rank": 0}
    assert hvd.allgather_object(hvd.rank()) == list(range(hvd.size()))


@check()
def horovod_joined_ranks_take_part() -> None:
    begin()
    if hvd.rank() > 0:
        others = hvd.size() - 1
        assert hvd.allreduce(torch.ones(2), op=hvd.Sum, name="late").tolist() == [others] * 2
        # Horovod refuses these two.
        assert len(hvd.allgather(torch.ones(2), name="late")) == 2 * others
        assert hvd.broadcast(torch.ones(2) * hvd.rank(), 1, name="late").tolist() == [1.0, 1.0]
    assert 0 <= hvd.join() < hvd.size()
    hvd.barrier()
