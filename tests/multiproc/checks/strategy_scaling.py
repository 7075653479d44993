"""Strategies and GradScaler: a rank with an overflow skips its step, and rounds still meet."""

from __future__ import annotations

from typing import Any

import torch

import mydist as md
from multiproc.checks.optimizer_scaling import scaler_of
from multiproc.checks.strategy_models import (
    Trained,
    expect_all_near,
    expect_equal_ranks,
    mean,
    real,
)
from multiproc.reference import raw
from multiproc.registry import check

# By name: the class, and options beside the learning rate.
INNER: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"momentum": 0.9}),
    "fused Adam": (torch.optim.Adam, {"fused": True}),
    "fused SGD": (torch.optim.SGD, {"fused": True}),
}
SCALE = 256.0


def scaled_step(
    trained: Trained, scaler: Any, overflow: bool, unscales: bool, clips: bool = False
) -> None:
    """As training loops make it."""
    trained.optimizer.zero_grad()
    scale = float(scaler.scale(torch.ones(())))
    trained.backward(scale * (float("inf") if overflow else 1.0))
    if unscales:
        scaler.unscale_(trained.optimizer)
        torch.nn.utils.clip_grad_norm_(trained.model.parameters(), 0.5)
    elif clips:
        trained.optimizer.clip_grad_norm_(0.5 * scaler.get_scale())
    scaler.step(trained.optimizer)
    scaler.update()


def made(kind: str, strategy: md.Strategy | None, **options: Any) -> Trained:
    """With another inner optimizer than usual. No strategy: a plain one, for any rank."""
    inner, more = INNER[kind]
    rank = options.pop("rank", md.rank())

    def wrap(model: torch.nn.Module, _: torch.optim.Optimizer) -> Any:
        plain = inner(model.parameters(), lr=0.05, **more)
        if strategy is None:
            return plain
        return md.DistributedOptimizer(
            plain,
            named_parameters=model.named_parameters(),
            named_buffers=model.named_buffers(),
            communication=strategy,
            **options,
        )

    return Trained(rank, wrap, torch.float32)


@check(min_size=2, cases=[(kind, unscales) for kind in INNER for unscales in (False, True)])
def an_overflow_on_one_rank_skips_its_step_and_no_round(kind: str, unscales: bool) -> None:
    trained, scaler = made(kind, md.LocalSGD(3)), scaler_of(SCALE)
    culprit = md.size() - 1
    before = [raw(p) for p in trained.model.parameters()]
    scaled_step(trained, scaler, md.rank() == culprit, unscales)
    skipped = before == [raw(p) for p in trained.model.parameters()]
    assert skipped == (md.rank() == culprit)
    assert not hasattr(trained.optimizer, "found_inf")
    assert trained.optimizer._distribution.runs[0].steps == 1
    scales = md.allgather_object(scaler.get_scale())
    assert scales == [SCALE] * culprit + [SCALE / 2]
    for _ in range(2):
        scaled_step(trained, scaler, False, unscales)
    expect_equal_ranks(trained)
    # Next to plain optimizers of all ranks, with scalers of their own.
    alone = []
    for rank in range(md.size()):
        plain, own = made(kind, None, rank=rank), scaler_of(SCALE)
        for number in range(3):
            scaled_step(plain, own, number == 0 and rank == culprit, unscales)
        alone.append([p.detach() for p in plain.model.parameters()])
    wanted = [mean(of_ranks) for of_ranks in zip(*alone, strict=True)]
    expect_all_near(list(trained.model.parameters()), wanted, 1e-6, kind)


@check(min_size=2, cases=[(kind,) for kind in INNER])
def clipping_scaled_gradients_clips_those_of_this_rank(kind: str) -> None:
    trained, plain = made(kind, md.LocalSGD(None)), made(kind, None)
    scalers = scaler_of(SCALE), scaler_of(SCALE)
    for _ in range(2):
        scaled_step(trained, scalers[0], False, False, clips=True)
        plain.optimizer.zero_grad()
        plain.backward(float(scalers[1].scale(torch.ones(()))))
        torch.nn.utils.clip_grad_norm_(plain.model.parameters(), 0.5 * SCALE)
        scalers[1].step(plain.optimizer)
        scalers[1].update()
    for mine, wanted in zip(trained.model.parameters(), plain.model.parameters(), strict=True):
        assert raw(mine) == raw(wanted)
    trained.optimizer.finish()


@check(min_size=2, cases=[(kind, unscales) for kind in INNER for unscales in (False, True)])
def post_local_switches_with_a_scaler(kind: str, unscales: bool) -> None:
    """Before the switch all ranks skip together, with the bits of averaged gradients."""
    synchronous = made(kind, md.SynchronousGradients())
    trained = made(kind, md.PostLocalSGD(2, start=3))
    scalers = scaler_of(SCALE), scaler_of(SCALE)
    for number in range(12):
        overflow = md.rank() == 0 and number in (1, 7)
        for one, scaler in zip((synchronous, trained), scalers, strict=True):
            scaled_step(one, scaler, overflow, unscales)
        run = trained.optimizer._distribution.runs[0]
        weight = trained.model[0].weight
        counted = md.allgather_object((run.steps, run.is_local, raw(weight)))
        assert len({row[:2] for row in counted}) == 1, counted
        equal = len({row[2] for row in counted}) == 1
        if number < 3:
            assert equal and raw(weight) == raw(synchronous.model[0].weight)
        elif run.is_local and run.steps > 3:
            assert equal == ((run.steps - 3) % 2 == 0), number
    assert run.job.rounds >= 3
    trained.optimizer.finish()
    expect_equal_ranks(trained)


@check(min_size=2)
def a_rank_that_always_overflows_stays_in_step() -> None:
    trained, scaler = real(md.DiLoCo(4, fragments=2, delay=1)), scaler_of(SCALE)
    for _ in range(9):
        scaled_step(trained, scaler, md.rank() == 0, unscales=False)
    trained.optimizer.finish()
    expect_equal_ranks(trained)
    assert all(bool(p.isfinite().all()) for p in trained.model.parameters())
