"""Tables of the parameter server against the same arithmetic in NumPy's float64, on every rank."""

from __future__ import annotations

import itertools
import os
import threading
import time
from functools import partial
from typing import Any

import numpy as np
import torch

import mydist as md
from multiproc.checks.freezing import expect_no_messages, synchronous_step
from multiproc.checks.models import raises
from multiproc.reference import raw
from multiproc.registry import NotHereError, check

_numbers = itertools.count()
# One piece, a few, and an uneven last one.
SHAPES = ((3,), (7, 5), (600, 1000))


def fresh(name: str) -> str:
    """A name that no table of this job has had."""
    return f"{name}.{next(_numbers)}"


def gradient(shape: tuple[int, ...], rank: int, step: int) -> torch.Tensor:
    """The same on any rank that asks for it."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(shape, generator=generator)


def start(shape: tuple[int, ...]) -> torch.Tensor:
    return gradient(shape, -1, 0)


def all_equal(tensor: torch.Tensor, name: str) -> None:
    """Every rank has the same bits."""
    first = md.broadcast(tensor, root_rank=0, name=fresh(name))
    assert raw(first) == raw(tensor)


@check(cases=[(shape,) for shape in SHAPES])
def ps_sync_applies_the_mean(shape: tuple[int, ...]) -> None:
    like = start(shape) if md.rank() == 0 else torch.zeros(shape)
    table = md.ps.Table(fresh("sync"), like, md.ps.SGD(lr=0.5))
    expected = start(shape).numpy().astype(np.float64)
    for step in range(3):
        value = table.push_pull(gradient(shape, md.rank(), step))
        mean = np.mean([gradient(shape, r, step).numpy() for r in range(md.size())], 0, np.float64)
        expected -= 0.5 * mean
        np.testing.assert_allclose(value.numpy(), expected, atol=1e-5)
        all_equal(value, "sync")
    table.close()


@check(min_size=2)
def ps_sync_repeats_its_bits_whatever_arrives_first() -> None:
    results = []
    for first in range(2):
        table = md.ps.Table(fresh("order"), torch.zeros(40_000), md.ps.SGD(lr=1.0))
        mine = gradient((40_000,), md.rank(), 7) * 1e4 ** md.rank()
        if md.rank() != first:
            md.barrier()
        handle = table.push_pull_async(mine)
        if md.rank() == first:
            md.barrier()
        results.append(md.synchronize(handle))
    assert raw(results[0]) == raw(results[1])


@check(cases=[(md.ps.Async(),), (md.ps.SSP(2),), (md.ps.Sync(),)])
def ps_no_push_is_lost(consistency: Any) -> None:
    steps = 20
    table = md.ps.Table(fresh("count"), torch.zeros(300_000), md.ps.Add(), consistency)
    handles = [table.push_async(torch.ones(300_000)) for _ in range(steps)]
    for handle in handles:
        md.synchronize(handle)
    table.finish()
    md.barrier()
    whole = steps * (1 if isinstance(consistency, md.ps.Sync) else md.size())
    assert table.pull().unique().tolist() == [whole]


@check(min_size=2)
def ps_ssp_holds_the_fast_worker() -> None:
    table = md.ps.Table(fresh("ssp"), torch.zeros(2), md.ps.Add(), md.ps.SSP(1))
    if md.rank() == 0:
        table.push_pull(torch.ones(2))
        handle = table.push_pull_async(torch.ones(2))
        assert not md.poll(handle)
        md.barrier()
        md.synchronize(handle)
    else:
        md.barrier()
        table.push(torch.ones(2))
    md.barrier()


@check()
def ps_handles_and_outputs() -> None:
    table = md.ps.Table(fresh("out"), start((4, 3)), md.ps.Assign(), md.ps.Async())
    out = torch.empty(3, 4).t()  # Not contiguous.
    assert table.pull(out=out) is out
    assert torch.equal(out, start((4, 3)))
    md.barrier()
    handle = table.push_pull_async(torch.full((4, 3), 2.0))
    result = md.synchronize(handle)
    assert md.rank() > 0 or result.shape == (4, 3)
    raises(lambda: md.synchronize(handle), "unknown")
    md.barrier()


@check()
def ps_rows_have_handles_outputs_and_priorities() -> None:
    table = md.ps.RowTable(fresh("out"), 9, 2, md.ps.Assign(), md.ps.Zeros())
    ids = torch.tensor([8, md.rank()])
    values = torch.full((2, 2), 3.0)
    md.synchronize(table.push_async(ids, values, priority=2))
    out = torch.empty(2, 2).t()  # Not contiguous.
    assert md.synchronize(table.pull_async(ids, out, priority=-1)) is out
    assert out.equal(values)
    out.zero_()
    assert md.synchronize(table.push_pull_async(ids, values, out=out, priority=1)) is out
    assert out.equal(values)
    assert table.push_pull(ids, values, priority=1).equal(table.pull(ids, priority=1))


@check()
def ps_a_table_without_a_rule_is_pulled_only() -> None:
    text = ": the table has no rule that applies a push; create it with one, such as rule=md.ps.SGD"
    for consistency in (md.ps.Sync(), md.ps.SSP(1), md.ps.Async()):
        table = md.ps.Table(fresh("kept"), start((3, 2)), consistency=consistency)
        rows = md.ps.RowTable(fresh("kept"), 9, 2, consistency=consistency)
        ids = torch.tensor([3])
        before = rows.pull(ids)
        calls = (
            lambda table=table: table.push(torch.ones(3, 2)),
            lambda table=table: table.push_pull(torch.ones(3, 2)),
            lambda table=table: table.push(None),
            lambda rows=rows, ids=ids: rows.push(ids, torch.ones(1, 2)),
        )
        for call in calls:
            raises(call, text)
        none = f"'{table.name}': the table has no rule; create it with one"
        raises(lambda table=table: table.set_options(lr=1), none)
        assert table.pull().equal(start((3, 2))) and rows.pull(ids).equal(before)
        assert not rows.embedding(ids).requires_grad
        assert "no rule, " in explained(table.name)


def explained(name: str) -> str:
    """What explain() says of the table."""
    (line,) = [line for line in str(md.explain()).splitlines() if f"table {name}" in line]
    return line


@check()
def ps_rows_are_made_on_first_touch_and_duplicates_are_added() -> None:
    name = fresh("rows")
    table = md.ps.RowTable(name, 10**9, 4, md.ps.SGD(lr=1.0), md.ps.Uniform(0.1), seed=3)
    ids = torch.tensor([10**9 - 1, 0, 10**9 - 1], dtype=torch.int32)
    before = table.pull(ids)
    assert before.abs().max() <= 0.1 and before[0].equal(before[2]) and before.unique().numel() == 8
    all_equal(before, "rows")
    md.barrier()
    table.push(ids, torch.ones(3, 4))
    md.barrier()
    moved = before - table.pull(ids)
    expected = torch.tensor([2.0, 1.0, 2.0]) * md.size()
    torch.testing.assert_close(moved, expected[:, None].expand(3, 4), atol=1e-5, rtol=0)
    assert table.pull(torch.empty(0, dtype=torch.long)).shape == (0, 4)


@check()
def ps_embedding_is_that_of_torch() -> None:
    table = md.ps.RowTable(fresh("emb"), 50, 3, md.ps.SGD(lr=1.0), consistency=md.ps.Sync())
    weight = table.pull(torch.arange(50)).requires_grad_()
    ids = torch.tensor([[1, 2], [2, 49]])
    md.barrier()
    rows = table.embedding(ids)
    assert torch.equal(rows, torch.nn.functional.embedding(ids, weight))
    factors = torch.arange(12.0).view(2, 2, 3)
    (rows * factors).sum().backward()
    (torch.nn.functional.embedding(ids, weight) * factors).sum().backward()
    assert weight.grad is not None
    after = table.pull(torch.arange(50))
    torch.testing.assert_close(after, weight.detach() - weight.grad)
    with torch.no_grad():
        assert not table.embedding(ids).requires_grad


@check()
def ps_a_gradient_that_is_not_finite_is_refused_dropped_or_applied() -> None:
    bad = torch.zeros(2, 3)
    bad[1, 2] = float("inf")
    table = md.ps.Table(fresh("refuse"), torch.ones(2, 3), md.ps.SGD(lr=1.0))
    where = f"rank {md.rank()}) is inf at index (1, 2); nothing has been applied"
    raises(lambda: table.push_pull(bad), where)
    assert table.push_pull(torch.zeros(2, 3)).equal(torch.ones(2, 3))
    if md.rank() == 0:  # The others wait for its clock.
        raises(lambda: table.push_pull(bad), "goes on calls push(None): other workers wait for it")
        after = table.push_pull(None)
    else:
        after = table.push_pull(torch.ones(2, 3))
    assert after.equal(torch.full((2, 3), 0.0 if md.size() > 1 else 1.0))
    for nan in ("skip", "allow"):
        table = md.ps.Table(fresh(nan), torch.ones(2, 3), md.ps.SGD(lr=1.0), nan=nan)
        assert bool(table.push_pull(bad).isfinite().all()) == (nan == "skip")


@check()
def ps_rows_without_a_gradient_move_the_clock_alone() -> None:
    table = md.ps.RowTable(
        fresh("skip"), 50, 2, md.ps.SGD(lr=1.0), md.ps.Zeros(), md.ps.Sync(), nan="skip"
    )
    ids = torch.tensor([3, 40])
    bad = torch.full((2, 2), float("nan"))
    assert table.push_pull(ids, bad).equal(torch.zeros(2, 2))
    table.push(ids[:0], torch.ones(0, 2))
    table.push(ids, torch.ones(2, 2))
    assert table.pull(ids).equal(-torch.ones(2, 2))
    raises(lambda: table.push(ids, None), "gradients is None", kind=TypeError)  # type: ignore[arg-type]


@check()
def ps_autograd_notices_what_is_pulled() -> None:
    table = md.ps.Table(fresh("noticed"), torch.ones(3), md.ps.Add(), md.ps.Async())
    weight = torch.zeros(3, requires_grad=True)
    product = (weight * weight).sum()
    table.pull(out=weight)
    raises(product.backward, "modified by an inplace operation", kind=RuntimeError)
    raises(lambda: table.pull(out=weight * 2), "out is a result that autograd tracks")


@check(min_size=2)
def ps_a_rank_with_a_wrong_argument_may_try_again() -> None:
    name = fresh("again")
    if md.rank() == 1:
        raises(lambda: md.ps.Table(name, torch.zeros(1), md.ps.SGD(lr=-1.0)), "lr is -1")
    table = md.ps.Table(name, torch.zeros(1), md.ps.SGD(lr=1.0))
    assert table.push_pull(torch.ones(1)).tolist() == [-1.0]


@check(min_size=2)
def ps_options_of_two_workers_add_up() -> None:
    table = md.ps.Table(fresh("both"), torch.ones(1), md.ps.SGD(lr=1.0), md.ps.Async())
    md.barrier()
    for rank, options in enumerate(({"lr": 0.5}, {"weight_decay": 1.0})):
        if md.rank() == rank:
            table.set_options(**options)
        md.barrier()
    if md.rank() == 0:
        assert table.push_pull(torch.zeros(1)).tolist() == [0.5]
    md.barrier()


@check()
def ps_options_change() -> None:
    table = md.ps.Table(fresh("options"), torch.zeros(3), md.ps.SGD(lr=1.0), md.ps.Async())
    raises(lambda: table.set_options(speed=3), "SGD has no option 'speed', expected lr")
    raises(lambda: table.set_options(lr=-1), "lr is -1, expected a number of at least 0")
    md.barrier()
    if md.rank() == 0:
        table.set_options(lr=0.25)
    md.barrier()
    table.push(torch.ones(3))
    md.barrier()
    assert table.pull().tolist() == [-0.25 * md.size()] * 3


@check()
def ps_wrong_arguments() -> None:
    table = md.ps.Table(fresh("wrong"), torch.zeros(2, 3), md.ps.Add(), md.ps.Async())
    raises(lambda: table.push(torch.zeros(6)), "gradient has shape [6], the table has [2, 3]")
    raises(
        lambda: table.push(torch.zeros(2, 3, dtype=torch.float64)),
        "gradient is torch.float64, expected torch.float32",
        kind=TypeError,
    )
    rows = md.ps.RowTable(fresh("wrong"), 10, 2, md.ps.Add())
    raises(
        lambda: rows.pull(torch.tensor([0, 10])), "row 10 at position 1 is not one of its 10 rows"
    )
    raises(
        lambda: rows.pull(torch.zeros(2)), "ids is torch.float32, expected integers", kind=TypeError
    )
    raises(
        lambda: rows.push(torch.tensor([1]), torch.zeros(2, 3)),
        "gradients has shape [2, 3], expected [1, 2]",
    )
    raises(lambda: md.ps.Table("x", torch.zeros(1), "sgd"), "rule is 'sgd'", kind=TypeError)  # type: ignore[arg-type]
    raises(lambda: md.ps.Sync(backup=-1), "Sync: backup is -1, expected at least 0")
    raises(lambda: md.ps.SSP(2**63), f"SSP: staleness is {2**63}, expected at most {2**63 - 1}")
    raises(
        lambda: md.ps.Uniform("wide"),  # type: ignore[arg-type]
        "Uniform: scale is 'wide' (str), expected a number of at least 0",
        kind=TypeError,
    )
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"rows": 0}, "rows is 0, expected at least 1"),
        ({"rows": 2**63}, f"rows is {2**63}, expected at most {2**63 - 1}"),
        ({"width": 2**20 + 1}, "width is 1048577, expected at most 1048576"),
        ({"seed": -1}, "seed is -1, expected at least 0"),
        ({"seed": 2**64}, f"seed is {2**64}, expected at most {2**64 - 1}"),
        ({"seed": 0.5}, "seed is 0.5 (float), expected an int"),
    )
    for arguments, text in wrong:
        kind = TypeError if "(float)" in text else ValueError
        given: dict[str, Any] = {"rows": 10, "width": 2} | arguments
        raises(lambda given=given: md.ps.RowTable("x", **given), f"RowTable 'x': {text}", kind=kind)
    ids = torch.tensor([1])
    calls = (
        lambda priority: table.push(torch.zeros(2, 3), priority=priority),
        lambda priority: table.pull_async(priority=priority),
        lambda priority: rows.push_async(ids, torch.zeros(1, 2), priority=priority),
        lambda priority: rows.pull(ids, priority=priority),
        lambda priority: rows.push_pull(ids, torch.zeros(1, 2), priority=priority),
    )
    for call in calls:
        text = f": priority is {2**31}, expected at most {2**31 - 1}"
        raises(lambda call=call: call(2**31), text)
        text = ": priority is 'first' (str), expected an int"
        raises(lambda call=call: call("first"), text, kind=TypeError)


@check(min_size=2)
def ps_ranks_that_declare_different_tables_are_told() -> None:
    is_odd = md.rank() % 2
    like, sgd = torch.zeros(1), md.ps.SGD(lr=0.5)
    other: list[tuple[Any, ...]] = [
        (torch.zeros(1 + is_odd), md.ps.Add()),
        (like, md.ps.Add() if is_odd else sgd),
        (like, md.ps.SGD(lr=0.25 + is_odd)),
        (like, None if is_odd else sgd),
        (like, sgd, md.ps.SSP(1 + is_odd)),
        (like, sgd, md.ps.Async() if is_odd else md.ps.Sync()),
    ]
    for arguments in other:
        text = "the ranks declare different tables"
        raises(
            lambda given=arguments: md.ps.Table(fresh("differ"), *given),
            text,
            kind=md.MismatchError,
        )
    table = md.ps.Table(fresh("after"), torch.zeros(1), md.ps.Add())
    assert table.push_pull(torch.ones(1)).tolist() == [1.0]


@check(min_size=2)
def ps_backup_workers_are_not_waited_for() -> None:
    table = md.ps.Table(fresh("backup"), torch.zeros(2), md.ps.Add(), md.ps.Sync(backup=1))
    if md.rank() != md.size() - 1:
        assert table.push_pull(torch.ones(2)).tolist() == [1.0, 1.0]
    md.barrier()
    if md.rank() == md.size() - 1:
        assert table.push_pull(torch.full((2,), 9.0)).tolist() == [1.0, 1.0]
    md.barrier()


@check(min_size=3)
def ps_a_process_set_has_tables_of_its_own() -> None:
    members = md.add_process_set([0, md.size() - 1])
    name = fresh("set")
    if md.rank() in members.ranks:
        table = md.ps.Table(name, torch.zeros(4), md.ps.SGD(lr=1.0), process_set=members)
        value = table.push_pull(torch.full((4,), float(md.rank())))
        assert value.tolist() == [-(md.size() - 1) / 2] * 4
    md.barrier()
    md.remove_process_set(members)


@check(min_size=2)
def ps_a_worker_with_fewer_steps_finishes_and_joins() -> None:
    table = md.ps.Table(fresh("uneven"), torch.zeros(3), md.ps.Add())
    for step in range(2 + md.rank()):
        assert table.push_pull(torch.ones(3)).tolist() == [step + 1.0] * 3
        md.allreduce(torch.ones(3), name="uneven")
    table.finish()
    md.join()
    assert table.pull().tolist() == [md.size() + 1.0] * 3
    md.barrier()


@check()
def ps_the_engine_does_not_notice() -> None:
    table = md.ps.Table(fresh("quiet"), torch.zeros(1000), md.ps.Add(), md.ps.Async())
    gate = md.ps.Table(fresh("gate"), torch.zeros(1), md.ps.Add())  # Waits without the engine.
    for _ in range(2):
        gate.push_pull(torch.ones(1))
    before, begin = md.stats()["wakeups"], time.monotonic()
    for _ in range(50):
        table.push_pull(torch.ones(1000))
    wakeups, seconds = md.stats()["wakeups"] - before, time.monotonic() - begin
    gate.push_pull(torch.ones(1))
    # Heartbeats, of this rank and of others: one of each in the shortest time.
    assert wakeups <= (md.size() + 1) * (1 + seconds), (wakeups, seconds)


@check(min_size=2)
def ps_the_schedule_of_the_engine_stays_frozen() -> None:
    """While tables are used between collectives, and by a thread at the same time."""
    if os.environ.get("MYDIST_SHARED_MEMORY") == "0":
        raise NotHereError("it does not freeze without shared memory")
    dense = md.ps.Table(fresh("frozen"), torch.zeros(1000), md.ps.Add())
    rows = md.ps.RowTable(fresh("frozen"), 1000, 4, md.ps.Add())
    ids = torch.arange(md.rank(), 1000, 7)
    is_over = threading.Event()
    used = 0

    def use() -> None:
        nonlocal used
        while not is_over.is_set():
            rows.push(ids, torch.ones(len(ids), 4))
            used += 1
            time.sleep(0.0005)

    collectives = synchronous_step()

    def step() -> None:
        collectives()
        dense.push_pull(torch.ones(1000))

    thread = threading.Thread(target=use)
    thread.start()
    try:
        expect_no_messages(step)
    finally:
        is_over.set()
        thread.join()
    assert used > 10, used


# In torch a row without a gradient keeps its state as well, and steps count for all rows.
SPARSE = (
    (md.ps.Adam(lr=0.1, eps=1e-12), partial(torch.optim.SparseAdam, lr=0.1, eps=1e-12)),
    (md.ps.Adagrad(lr=0.1, lr_decay=0.1), partial(torch.optim.Adagrad, lr=0.1, lr_decay=0.1)),
    (md.ps.SGD(lr=0.1), partial(torch.optim.SGD, lr=0.1)),
)


@check(cases=[(index, sync) for index in range(len(SPARSE)) for sync in (True, False)])
def ps_rules_of_rows_are_the_sparse_ones_of_torch(index: int, sync: bool) -> None:
    """Rows are touched in some steps only, and lie on several servers."""
    rule, reference = SPARSE[index]
    consistency = md.ps.Sync() if sync else md.ps.Async()
    table = md.ps.RowTable(fresh("sparse"), 2000, 3, rule, md.ps.Normal(1.0), consistency)
    everything = torch.arange(2000)
    weight = table.pull(everything).requires_grad_()
    optimizer = reference([weight])
    random = torch.Generator().manual_seed(5)
    md.barrier()
    for step in range(12):
        ids = torch.randint(2000, (40,), generator=random)
        slopes = torch.randn(40, 3, generator=random)
        weight.grad = torch.sparse_coo_tensor(ids[None], slopes, (2000, 3), check_invariants=True)
        optimizer.step()
        if sync or step % md.size() == md.rank():  # Each push alone, by one worker after the other.
            table.push(ids, slopes)
        if not sync:
            md.barrier()
    torch.testing.assert_close(table.pull(everything), weight.detach(), atol=2e-5, rtol=1e-5)
    md.barrier()


@check()
def ps_tables_tell_what_they_have_done_and_where_they_lie() -> None:
    table = md.ps.Table(fresh("told"), torch.zeros(600_000), md.ps.Add(), md.ps.Async())
    for _ in range(3):
        table.push_pull(torch.ones(600_000))
    stats = table.stats()
    assert stats["pushes"] == 3 and stats["most_staleness"] >= stats["mean_staleness"] >= 0
    shares = table.explain()
    assert sum(share[2] for share in shares) == 2_400_000
    assert all(share[1] > 0 for share in shares)
    md.barrier()
