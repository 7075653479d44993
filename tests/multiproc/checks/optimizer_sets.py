"""DistributedOptimizer and state in process sets, and with ranks that run out of data."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import (
    BY_PATH,
    COMPRESSIONS,
    average_gradients,
    expect_same_parameters,
    loss_of,
    raises,
    tiny_model,
    wrapped,
)
from multiproc.checks.optimizer_adasum import Simulation, sgd
from multiproc.checks.optimizer_scaling import backward, scaler_of, unchanged, values
from multiproc.checks.optimizer_sparse import dense_gradient, look_up, table
from multiproc.checks.optimizer_state import flat
from multiproc.reference import raw
from multiproc.registry import check


@contextmanager
def halves() -> Iterator[md.ProcessSet]:
    """The even and the odd ranks as process sets; gives the one with this rank."""
    ranks = [list(range(first, md.size(), 2)) for first in (0, 1)]
    sets = [md.add_process_set(members) for members in ranks if members]
    try:
        yield sets[md.rank() % 2]
    finally:
        for process_set in sets:
            md.remove_process_set(process_set)


def expect_average_of(
    model: torch.nn.Module, reference: torch.nn.Module, ranks: Sequence[int], step: int = 0
) -> None:
    average_gradients(reference, lambda rank: loss_of(reference, rank, step), ranks)
    for mine, wanted in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, wanted.grad, rtol=1e-12, atol=1e-14)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "groups": {"groups": 2},
    "predivide": {"gradient_predivide_factor": 2.0},
    "predivided groups": {"gradient_predivide_factor": 2.0, "groups": 1},
}


@check(min_size=2, cases=[(name, path) for name in OPTIONS for (path,) in BY_PATH])
def each_set_averages_over_its_ranks(name: str, path: str) -> None:
    with halves() as own:
        model, reference = tiny_model(), tiny_model()
        options = OPTIONS[name] | {"compression": COMPRESSIONS[path]}
        optimizer = wrapped(model, process_set=own, **options)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, md.rank(), step).backward()
            optimizer.synchronize()
            expect_average_of(model, reference, own.ranks, step)


@check(min_size=2)
def sets_take_different_numbers_of_steps() -> None:
    with halves() as own:
        model, reference = tiny_model(), tiny_model()
        optimizer = wrapped(model, process_set=own)
        plain = torch.optim.SGD(reference.parameters(), lr=0.1)
        for step in range(1 + 3 * (md.rank() % 2)):
            optimizer.zero_grad()
            loss_of(model, md.rank(), step).backward()
            optimizer.step()
            average_gradients(
                reference, lambda rank, step=step: loss_of(reference, rank, step), own.ranks
            )
            plain.step()
        expect_same_parameters(model, reference)


@check(min_size=2)
def overlapping_sets_in_one_backward() -> None:
    """Part of a model is shared by all ranks, part by a half of them."""
    with halves() as own:
        shared, local = tiny_model(1), tiny_model(2)
        optimizers = [wrapped(shared), wrapped(local, process_set=own)]
        references = [tiny_model(1), tiny_model(2)]
        (loss_of(shared, md.rank()) + loss_of(local, md.rank())).backward()
        for optimizer in optimizers:
            optimizer.synchronize()
        expect_average_of(shared, references[0], range(md.size()))
        expect_average_of(local, references[1], own.ranks)


@check(min_size=2)
def sparse_gradients_in_sets() -> None:
    with halves() as own:
        model = table()
        optimizer = wrapped(model, process_set=own)
        look_up(model, md.rank()).backward()
        optimizer.synchronize()
        assert model.weight.grad is not None
        wanted = dense_gradient(own.ranks) / own.size()
        torch.testing.assert_close(model.weight.grad.to_dense(), wanted, rtol=1e-14, atol=0)


@check(min_size=2)
def adasum_in_sets() -> None:
    with halves() as own:
        model = tiny_model()
        simulation = Simulation(tiny_model(), sgd, own.ranks)
        optimizer = md.DistributedOptimizer(sgd(model), op=md.Adasum, process_set=own)
        for step in range(2):
            optimizer.zero_grad()
            loss_of(model, md.rank(), step).backward()
            optimizer.step()
            simulation.step(lambda m, rank, step=step: loss_of(m, rank, step).backward())
        expect_same_parameters(model, simulation.model, 1e-9)


@check(min_size=2)
def overflow_skips_in_its_own_set_only() -> None:
    with halves() as own:
        model = tiny_model().float()
        optimizer = wrapped(model, process_set=own)
        scaler = scaler_of(64.0)
        before = values(model)
        backward(model, scaler, overflow=md.rank() == 0)
        scaler.step(optimizer)
        scaler.update()
        assert unchanged(model, before) == (0 in own.ranks)
        assert scaler.get_scale() == (32.0 if 0 in own.ranks else 64.0)


@check(min_size=2)
def only_members_wrap_with_a_set() -> None:
    with halves() as own:
        others = md.ProcessSet([0])
        raises(
            lambda: wrapped(tiny_model(), process_set=others),
            "DistributedOptimizer",
            "ProcessSet([0])",
            "not part of the job",
        )
        assert own.included()
    alone = md.add_process_set([0])
    if md.rank() != 0:
        for call in (
            lambda: wrapped(tiny_model(), process_set=alone),
            lambda: wrapped(tiny_model(), process_set=alone, op=md.Adasum),
            lambda: md.broadcast_parameters(tiny_model().state_dict(), 0, alone),
            lambda: md.broadcast_optimizer_state(sgd(tiny_model()), 0, process_set=alone),
        ):
            raises(call, f"rank {md.rank()} is not in", "ranks=[0]")
    md.remove_process_set(alone)


@check(min_size=2)
def a_removed_set_is_named() -> None:
    members = md.add_process_set(list(range(md.size() - 1)) or [0])
    optimizer = None
    if members.included():
        model = tiny_model()
        optimizer = wrapped(model, process_set=members)
        loss_of(model, md.rank()).backward()
        optimizer.step()
    number = members.process_set_id
    md.remove_process_set(members)
    if members.included() and members.size() > 1:
        assert optimizer is not None
        raises(optimizer.synchronize, f"process set {number}", "removed")


@check(min_size=2)
def state_is_sent_within_a_set() -> None:
    with halves() as own:
        root = own.ranks[-1]
        model = tiny_model(md.rank())
        optimizer = sgd(model)
        take_steps_of(model, optimizer, md.rank() + 1)
        md.broadcast_parameters(model.state_dict(), root, process_set=own)
        md.broadcast_optimizer_state(optimizer, root, process_set=own)
        mine = [flat(optimizer.state_dict()), [raw(p) for p in model.parameters()]]
        gathered = md.allgather_object(mine, process_set=own)
        assert all(other == gathered[-1] for other in gathered)
        wanted = tiny_model(root)
        of_root = sgd(wanted)
        take_steps_of(wanted, of_root, root + 1, root)
        assert mine == [flat(of_root.state_dict()), [raw(p) for p in wanted.parameters()]]
        outsider = (md.rank() + 1) % md.size()
        if outsider not in own.ranks:
            for call in (
                lambda: md.broadcast_parameters(model.state_dict(), outsider, process_set=own),
                lambda: md.broadcast_optimizer_state(optimizer, outsider, process_set=own),
            ):
                raises(call, f"root_rank is {outsider}", str(own.ranks))


def take_steps_of(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, count: int, rank: int | None = None
) -> None:
    for step in range(count):
        optimizer.zero_grad()
        loss_of(model, md.rank() if rank is None else rank, step).backward()
        optimizer.step()


@check(min_size=2, cases=[(None,), (2,)])
def ranks_that_run_out_of_data_join(groups: int | None) -> None:
    model, reference = tiny_model(), tiny_model()
    optimizer = wrapped(model, groups=groups)
    plain = torch.optim.SGD(reference.parameters(), lr=0.1)
    for step in range(2 + md.rank()):
        optimizer.zero_grad()
        loss_of(model, md.rank(), step).backward()
        optimizer.step()
    last = md.join()
    assert last == md.size() - 1, "the rank with most data joins last"
    for step in range(2 + last):
        training = [rank for rank in range(md.size()) if step < 2 + rank]
        average_gradients(
            reference, lambda rank, step=step: loss_of(reference, rank, step), training
        )
        for parameter in reference.parameters():  # Those that joined count as zeros.
            parameter.grad *= len(training) / md.size()
        plain.step()
    md.broadcast_parameters(model.state_dict(), root_rank=last)
    expect_same_parameters(model, reference)
    # Everybody trains on together.
    optimizer.zero_grad()
    loss_of(model, md.rank(), 9).backward()
    optimizer.synchronize()
    expect_average_of(model, reference, range(md.size()), 9)
