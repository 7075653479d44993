"""ShardedOptimizer: clipping, AMP, closures, hooks, schedulers, state, memory, refusals."""

from __future__ import annotations

import contextlib
import copy
import gc
import itertools
import math
import shutil
import tempfile
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import expect_equal_parameters, raises, unchecked
from multiproc.checks.sharded import (
    BY_STAGE,
    average,
    average_trained,
    expect_same,
    loss_of,
    made,
    sharded,
    train,
    train_alone,
    uneven_model,
)
from multiproc.memory_use import bytes_in, forget_peak
from multiproc.registry import NotHereError, check
from mydist import _C


@check(cases=[(stage, order) for stage in (1, 2) for order in (2.0, 3.0, math.inf)])
def clipping_uses_the_norm_of_the_whole(stage: int, order: float) -> None:
    model, alone = uneven_model(), uneven_model()
    for one in (model, alone):
        one.empty.requires_grad_(False)  # torch has no maximum of nothing.
    optimizer, reference = sharded(model, stage, "SGD"), made("SGD", alone)
    for step in range(2):
        optimizer.zero_grad()
        loss_of(model, md.rank(), step).backward()
        norm = optimizer.clip_grad_norm_(0.01, order)
        optimizer.step()
        average_trained(alone, step)
        expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.01, order)
        reference.step()
        torch.testing.assert_close(norm.double(), expected, rtol=1e-6, atol=0)
    for own, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-6, atol=1e-9)
    expect_equal_parameters(model)


@check()
def clipping_refuses_what_is_not_finite() -> None:
    model = uneven_model()
    optimizer = sharded(model, 2)
    (loss_of(model, md.rank()) * (math.inf if md.rank() == 0 else 1)).backward()
    raises(lambda: optimizer.clip_grad_norm_(1.0, 0.0), "norm_type is 0.0, expected a number above")
    raises(
        lambda: optimizer.clip_grad_norm_(1.0, error_if_nonfinite=True),
        "non-finite",
        kind=RuntimeError,
    )
    optimizer.zero_grad()


@check(cases=BY_STAGE)
def all_ranks_skip_an_overflow_together(stage: int) -> None:
    model, alone = uneven_model(torch.float32), uneven_model(torch.float32)
    optimizer, reference = sharded(model, stage, "SGD"), made("SGD", alone)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    for step in range(4):
        model.zero_grad()
        loss = loss_of(model, md.rank(), step)
        if step == 1:
            # One element of one gradient, so it is in the slice of one rank.
            loss = loss + math.inf * model[0].weight[0, 0]
        scaler.scale(loss).backward()
        if step == 2:
            scaler.unscale_(optimizer)
            optimizer.clip_grad_norm_(0.5)
        before = [p.detach().clone() for p in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (8.0 if step < 1 else 4.0), step
        if step == 1:
            assert all(map(torch.equal, before, model.parameters())), "the step was not skipped"
            continue
        average(alone, lambda rank, step=step: loss_of(alone, rank, step))
        if step == 2:
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        reference.step()
    for own, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-5, atol=1e-6)
    expect_equal_parameters(model)


@check(cases=BY_STAGE)
def hooks_schedulers_and_closures_work(stage: int) -> None:
    model, alone = uneven_model(), uneven_model()
    plain, reference = made("AdamW", model), made("AdamW", alone)
    scheduler = torch.optim.lr_scheduler.StepLR(plain, 1, 0.5)
    theirs = torch.optim.lr_scheduler.StepLR(reference, 1, 0.5)
    seen: list[int] = []
    plain.register_step_pre_hook(lambda o, *_: seen.append(len(o.param_groups[0]["params"])))
    optimizer = md.ShardedOptimizer(plain, model.named_parameters(), stage)
    optimizer.register_step_post_hook(
        lambda o, *_: seen.append(sum(p.numel() for p in o.param_groups[0]["params"]))
    )

    def closure(step: int) -> torch.Tensor:
        optimizer.zero_grad()
        loss = loss_of(model, md.rank(), step)
        loss.backward()
        return loss

    for step in range(3):
        expected = loss_of(model, md.rank(), step).item()
        assert optimizer.step(lambda step=step: closure(step)).item() == expected
        scheduler.step()
        average(alone, lambda rank, step=step: loss_of(alone, rank, step))
        reference.step()
        theirs.step()
    whole = sum(p.numel() for p in model.parameters())
    assert seen == [6, whole] * 3, seen
    assert optimizer.param_groups[0]["lr"] == reference.param_groups[0]["lr"] == 0.01 / 8
    expect_same(model, alone)


@check(cases=BY_STAGE)
def an_error_in_the_step_leaves_everything_in_place(stage: int) -> None:
    model = uneven_model()
    optimizer = sharded(model, stage)
    train(model, optimizer, range(1))
    before = [p.detach().clone() for p in model.parameters()]
    loss_of(model, md.rank(), 1).backward()
    lr = optimizer.param_groups[0].pop("lr")
    raises(optimizer.step, "lr", kind=KeyError)
    optimizer.param_groups[0]["lr"] = lr
    assert all(map(torch.equal, before, model.parameters()))
    assert optimizer.param_groups[0]["params"] == list(model.parameters())
    assert set(optimizer.state) <= set(model.parameters())
    optimizer.zero_grad()
    train(model, optimizer, range(1, 2))
    expect_equal_parameters(model)


def state_after(steps: range, stage: int) -> tuple[torch.nn.Module, Any]:
    model = uneven_model()
    optimizer = sharded(model, stage)
    train(model, optimizer, steps)
    return model, optimizer


@check(cases=BY_STAGE)
def slices_are_saved_and_loaded(stage: int) -> None:
    model, optimizer = state_after(range(3), stage)
    # A copy, as torch loads without one.
    saved, parameters = copy.deepcopy(optimizer.state_dict()), model.state_dict()
    other = uneven_model()
    other.load_state_dict(parameters)
    again = sharded(other, 3 - stage)
    again.load_state_dict(saved)
    train(model, optimizer, range(3, 6))
    train(other, again, range(3, 6))
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    if md.size() > 1:
        moved = {index: {**shard, "start": 1} for index, shard in saved["shards"].items()}
        if moved:
            raises(lambda: again.load_state_dict({**saved, "shards": moved}), "gather_state")


@check(cases=BY_STAGE)
def state_is_gathered_and_scattered(stage: int) -> None:
    model, optimizer = state_after(range(3), stage)
    root = md.size() - 1
    whole = md.gather_state(optimizer, root)
    assert (whole is None) == (md.rank() != root)
    # One process goes on with it.
    alone = uneven_model()
    train_alone(alone, reference := made("AdamW", alone), range(3))
    if whole is not None:
        expected = reference.state_dict()
        assert whole["param_groups"] == expected["param_groups"]
        for index, values in whole["state"].items():
            for key, value in values.items():
                torch.testing.assert_close(value, expected["state"][index][key], rtol=1e-9, atol=0)
        made("AdamW", uneven_model()).load_state_dict(whole)
    # And all ranks, from the root's.
    other = uneven_model()
    other.load_state_dict(model.state_dict())
    again = sharded(other, 3 - stage)
    md.scatter_state(again, whole, root)
    train(model, optimizer, range(3, 5))
    train(other, again, range(3, 5))
    assert all(map(torch.equal, model.parameters(), other.parameters()))


@check(min_size=2)
def the_whole_state_is_on_the_root_only() -> None:
    layers = (torch.nn.Linear(1024, 1024, bias=False) for _ in range(8))
    model = torch.nn.Sequential(*layers)
    optimizer = sharded(model, 2, "SGD")
    md.prepare_state(optimizer)
    whole = 8 * 4 * 1024 * 1024
    forget_peak()
    before = bytes_in("status", "VmRSS")
    state = md.gather_state(optimizer)
    grown = bytes_in("status", "VmHWM") - before
    # A parameter has an eighth of it, and is in memory twice.
    assert grown < whole / 4 if state is None else grown < 1.25 * whole, f"{grown} of {whole}"


@check(min_size=2)
def another_number_of_ranks_goes_on_with_the_state() -> None:
    model, optimizer = state_after(range(3), 2)
    whole = md.gather_state(optimizer)
    train_alone(alone := uneven_model(), reference := made("AdamW", alone), range(3))
    fewer = {tuple(range(count)) for count in (1, md.size() - 1)}
    sets = [md.add_process_set(list(ranks)) for ranks in sorted(fewer)]
    for some in sets:
        if md.rank() in some.ranks:
            other = uneven_model()
            other.load_state_dict(model.state_dict())
            again = md.ShardedOptimizer(
                made("AdamW", other), other.named_parameters(), 1, process_set=some
            )
            md.scatter_state(again, whole)
            one = uneven_model()
            one.load_state_dict(alone.state_dict())
            plain = made("AdamW", one)
            plain.load_state_dict(copy.deepcopy(reference.state_dict()))
            for step in range(3, 6):
                again.zero_grad()
                sum(loss_of(other, rank, step) for rank in range(md.size())).backward()
                again.step()
                plain.zero_grad()
                sum(loss_of(one, rank, step) for rank in range(md.size())).backward()
                plain.step()
            expect_same(other, one)
    md.barrier()
    for some in sets:
        md.remove_process_set(some)


@check(cases=BY_STAGE)
def a_checkpoint_has_the_whole_state(stage: int) -> None:
    folder = md.broadcast_object(tempfile.mkdtemp() if md.rank() == 0 else None, 0)
    model, optimizer = state_after(range(2), stage)
    with md.Checkpoint(folder, model=model, optimizer=optimizer, on_sigterm=False) as checkpoint:
        checkpoint.save(2)
    train(model, optimizer, range(2, 4))
    other = uneven_model()
    again = sharded(other, 3 - stage)
    with md.Checkpoint(folder, model=other, optimizer=again, on_sigterm=False) as checkpoint:
        assert checkpoint.step == 2
    train(other, again, range(2, 4))
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    # A plain optimizer of one process has the same.
    alone = uneven_model()
    plain = made("AdamW", alone)
    with md.Checkpoint(folder, model=alone, optimizer=plain, on_sigterm=False):
        train_alone(alone, plain, range(2, 4))
    expect_same(model, alone)
    md.barrier()
    if md.rank() == 0:
        shutil.rmtree(folder)


@check()
def a_state_that_does_not_fit_is_an_error_on_every_rank() -> None:
    model, optimizer = state_after(range(1), 1)
    whole = md.gather_state(optimizer)
    if whole is not None:
        whole["state"][2]["exp_avg"] = torch.zeros(3, 3)
    raises(
        lambda: md.scatter_state(optimizer, whole),
        "'exp_avg' of parameter",
        "[3, 3], expected",
    )
    raises(lambda: md.scatter_state(optimizer, None), "the root has no state")
    raises(lambda: md.gather_state(optimizer, 99), "root_rank is 99")
    plain = made("AdamW", model)
    raises(lambda: md.gather_state(plain), "expected what ShardedOptimizer", kind=TypeError)
    raises(lambda: md.broadcast_optimizer_state(optimizer, 0), "the optimizer is sharded")
    raises(lambda: md.DistributedOptimizer(optimizer), "is wrapped by ShardedOptimizer already")


@check(cases=BY_STAGE)
def memory_is_that_of_the_formula(stage: int) -> None:
    torch.manual_seed(0)
    n = md.size()
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64 * n, bias=False) for _ in range(2)))
    count = sum(p.numel() for p in model.parameters())
    optimizer = md.ShardedOptimizer(torch.optim.AdamW(model.parameters()), stage=stage)
    assert optimizer.memory().optimizer == 0
    for p in model.parameters():
        p.pow(2).sum().backward()
    optimizer.step()
    use = optimizer.memory()
    assert (use.parameters, use.optimizer, use.padding) == (4 * count, 8 * count // n, 0)
    assert use.gradients == (4 * count if stage == 1 else 4 * count // n)
    plan = md.memory_plan(model, stage, n, optimizer)
    assert plan.use == use, (plan.use, use)


@check()
def explain_tells_what_is_updated_where() -> None:
    model = uneven_model()
    optimizer = sharded(model, 2)
    own = sum(piece.flat.numel() for piece in optimizer._slices.pieces())
    whole = sum(p.numel() for p in model.parameters())
    mine = f"{own} of {whole} parameters are updated here"
    facts = [fact for topic, fact in md.explain().facts.items() if topic.startswith("sharding")]
    (fact,) = [fact for fact in facts if fact.choice == mine][:1]
    assert fact.reason.startswith(f"slice {md.rank()} of {md.size()} of 1 bucket of up to"), fact
    assert sum(md.allgather_object(own)) == whole


@check(min_size=2, cases=itertools.product((1, 2), ("element", "parameter")))
def ranks_of_two_sets_train_apart(stage: int, partition: str) -> None:
    halves = [md.add_process_set([r for r in range(md.size()) if r % 2 == h]) for h in (0, 1)]
    own = halves[md.rank() % 2]
    model, alone = uneven_model(), uneven_model()
    optimizer = sharded(model, stage, process_set=own, partition=partition)
    reference = made("AdamW", alone)
    for step in range(2):
        train(model, optimizer, range(step, step + 1))
        reference.zero_grad()
        mean = sum(loss_of(alone, rank, step) for rank in own.ranks) / own.size()
        mean.backward()
        reference.step()
    expect_same(model, alone)
    md.barrier()
    for half in halves:
        md.remove_process_set(half)


@check(min_size=2, cases=BY_STAGE)
def other_models_are_a_mismatch_that_names_the_parameter(stage: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4 + md.rank() % 2))
    optimizer = md.ShardedOptimizer(made("AdamW", model), model.named_parameters(), stage)

    def step() -> None:
        model(torch.ones(2, 3)).sum().backward()
        optimizer.step()

    raises(step, "parameter '0.", "has a different shape", kind=md.MismatchError)
    with contextlib.suppress(md.MydistError):
        optimizer._distribution.paths[0].remove()


@check(min_size=2, cases=[("element",), ("parameter",)])
def a_rank_that_joins_is_an_error_not_a_stale_slice(partition: str) -> None:
    with unchecked():
        model = uneven_model()
        optimizer = sharded(model, 1, partition=partition)
    if md.rank() != 0:
        words = ("rank 0 called mydist.join()", "Call join() of the sharded optimizer")
        raises(lambda: train(model, optimizer, range(1)), *words, kind=md.MydistError)
    md.join()


@check(cases=itertools.product((1, 2), (False, True)))
def ranks_without_data_go_on_with_their_slices(stage: int, clips: bool) -> None:
    counts = [1 + (3 - rank) % 3 for rank in range(md.size())]  # Rank 0 ends first, rank 1 last.
    name = "SGD" if clips else "AdamW"
    model, alone = uneven_model(), uneven_model()
    optimizer, reference = sharded(model, stage, name), made(name, alone)
    for step in range(counts[md.rank()]):
        optimizer.zero_grad()
        optimizer.param_groups[0]["lr"] = 0.01 * (1 + step)
        loss_of(model, md.rank(), step).backward()
        if clips:
            optimizer.clip_grad_norm_(0.01)
        if not clips or step != 1:  # Else the step is skipped.
            optimizer.step()
    optimizer.join()
    for step in range(max(counts)):
        reference.param_groups[0]["lr"] = 0.01 * (1 + step)
        average(alone, lambda r, step=step: loss_of(alone, r, step) * float(step < counts[r]))
        if clips:
            torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.01)
        if not clips or step != 1:
            reference.step()
    for own, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(own, theirs, rtol=1e-6, atol=1e-9)
    expect_equal_parameters(model)
    md.barrier()
    train(model, optimizer, range(5, 6))  # All have data again.
    expect_equal_parameters(model)


@check(min_size=2)
def what_a_rank_without_data_cannot_follow_is_an_error_on_all() -> None:
    model = uneven_model()
    optimizer = sharded(model, 2)
    if md.rank() == 1:
        raises(optimizer.join, "full_grads() does not work in stage 2 while a rank has joined")
        return
    loss_of(model, md.rank(), 1).backward()
    raises(lambda: optimizer.full_grads().__enter__(), "use stage=1")


@check(cases=[("fp16",), ("bf16",)])
def gradients_travel_compressed(name: str) -> None:
    compression = getattr(md.Compression, name)
    models = [uneven_model(torch.float32) for _ in range(3)]
    optimizers = [sharded(models[stage], stage, compression=compression) for stage in (1, 2)]
    optimizers.append(
        md.DistributedOptimizer(
            made("AdamW", models[0]), models[0].named_parameters(), compression=compression
        )
    )
    for model, optimizer in zip([models[1], models[2], models[0]], optimizers, strict=True):
        train(model, optimizer, range(3))
        for own, theirs in zip(model.parameters(), models[1].parameters(), strict=True):
            torch.testing.assert_close(own, theirs, rtol=1e-6, atol=1e-7)


@check(cases=[(None,), (torch.bfloat16,)])
def fully_shard_trains_what_one_process_trains(precision: torch.dtype | None) -> None:
    if _C.backend_name() == "mpi":
        raise NotHereError("torch keeps groups of DTensors for ever, so MPI cannot end in order")
    train_fully_sharded(precision)
    gc.collect()  # The model knows the group.
    torch.distributed.destroy_process_group()


def train_fully_sharded(precision: torch.dtype | None) -> None:
    def build() -> torch.nn.Sequential:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(5, 37), torch.nn.Tanh(), torch.nn.Linear(37, 1))

    def loss(one: torch.nn.Module, rank: int, step: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(1000 * step + rank)
        output: torch.Tensor = one(torch.rand(6, 5, generator=generator))
        return output.float().pow(2).mean()

    model, alone = build(), build()
    assert md.fully_shard(model, mixed_precision=precision) is model
    optimizer, reference = made("AdamW", model), made("AdamW", alone)
    for step in range(3):
        optimizer.zero_grad()
        loss(model, md.rank(), step).backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        average(alone, lambda rank, step=step: loss(alone, rank, step))
        expected = torch.nn.utils.clip_grad_norm_(alone.parameters(), 0.5)
        reference.step()
        slack = 1e-5 if precision is None else 2e-2
        torch.testing.assert_close(norm.full_tensor(), expected, rtol=slack, atol=0)
    held = sum(p.to_local().numel() for p in model.parameters())
    assert held < sum(p.numel() for p in alone.parameters()) or md.size() == 1
    for own, theirs in zip(model.parameters(), alone.parameters(), strict=True):
        assert own.shape == theirs.shape  # Programs see the whole, not what this rank holds.
        slack = 1e-6 if precision is None else 3e-2
        torch.testing.assert_close(own.full_tensor(), theirs, rtol=slack, atol=slack)
    raises(lambda: md.fully_shard(model), "is sharded already")
    raises(lambda: md.fully_shard(build(), lambda _: False), "units chose none of the 4 modules")
