"""scale_lr and WarmupLR against their formulas, with every kind of scheduler."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from refusals import expect_refusal, refusals
from torch.optim import lr_scheduler

import mydist as md

pytestmark = pytest.mark.usefixtures("job")

STEPS = 12
WARMUP = 5


def sgd(lr: Any = 0.5) -> torch.optim.SGD:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros((), dtype=torch.float64))], lr=lr)


def used_rate(optimizer: torch.optim.Optimizer) -> float:
    """The rate of one step, seen by what it does to a parameter with gradient 1."""
    (parameter,) = optimizer.param_groups[0]["params"]
    before = parameter.item()
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return float(before - parameter.item())


def ramp(step: int, start: float = 0.25, steps: int = WARMUP) -> float:
    """Goyal et al. 2017, section 2.2: from start to 1 by equal amounts."""
    return 1.0 if step >= steps else start + (1 - start) * step / steps


@pytest.mark.parametrize("rule", ["linear", "sqrt"])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_scale_lr(rule: Any, size: int) -> None:
    factor = size if rule == "linear" else math.sqrt(size)
    assert md.scale_lr(0.1, size, rule) == 0.1 * factor
    optimizer = sgd(0.3)
    other = torch.nn.Parameter(torch.zeros(1))
    optimizer.add_param_group({"params": [other], "lr": torch.tensor(2.0)})
    assert md.scale_lr(optimizer, size, rule) is optimizer
    assert optimizer.param_groups[0]["lr"] == 0.3 * factor
    torch.testing.assert_close(optimizer.param_groups[1]["lr"], torch.tensor(2.0 * factor))


def test_scale_lr_takes_the_size_of_the_job() -> None:
    assert md.scale_lr(0.1) == 0.1 * md.size()
    assert md.scale_lr(2) == 2.0


def test_warmup_alone_follows_the_formula() -> None:
    optimizer = sgd(0.5)
    warmup = md.WarmupLR(optimizer, WARMUP, start_factor=0.25)
    assert warmup.get_last_lr() == [0.5 * 0.25]
    for step in range(STEPS):
        assert used_rate(optimizer) == pytest.approx(0.5 * ramp(step), rel=1e-12)
        assert warmup.get_last_lr() == pytest.approx([0.5 * ramp(step)], rel=1e-12)
        assert optimizer.param_groups[0]["lr"] == 0.5, "the full rate is back"


def test_warmup_starts_from_the_rate_of_one_rank() -> None:
    assert md.WarmupLR(sgd(), 5).start_factor == 1.0 / md.size()


def test_without_steps_there_is_no_warmup() -> None:
    optimizer = sgd(0.5)
    md.WarmupLR(optimizer, 0, start_factor=0.0)
    assert used_rate(optimizer) == 0.5


# Schedulers that are stepped every step, with the rate they prescribe in step t for a base of 0.5.
CLOSED_FORMS: dict[str, tuple[Callable[[Any], Any], Callable[[int], float]]] = {
    "cosine": (
        lambda o: lr_scheduler.CosineAnnealingLR(o, T_max=STEPS),
        lambda t: 0.25 * (1 + math.cos(math.pi * t / STEPS)),
    ),
    "exponential": (lambda o: lr_scheduler.ExponentialLR(o, 0.9), lambda t: 0.5 * 0.9**t),
    "step": (lambda o: lr_scheduler.StepLR(o, 3, 0.1), lambda t: 0.5 * 0.1 ** (t // 3)),
    "lambda": (lambda o: lr_scheduler.LambdaLR(o, lambda t: 1 / (1 + t)), lambda t: 0.5 / (1 + t)),
    "multiplicative": (
        lambda o: lr_scheduler.MultiplicativeLR(o, lambda t: 0.8),
        lambda t: 0.5 * 0.8**t,
    ),
    "sequential": (
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.ConstantLR(o, 1.0), lr_scheduler.ExponentialLR(o, 0.5)], [4]
        ),
        lambda t: 0.5 if t < 4 else 0.5 * 0.5 ** (t - 4),
    ),
    "chained": (
        lambda o: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ExponentialLR(o, 0.9), lr_scheduler.StepLR(o, 4, 0.5)]
        ),
        lambda t: 0.5 * 0.9**t * 0.5 ** (t // 4),
    ),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
@pytest.mark.parametrize("warmup_first", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_composes_with_step_schedulers(name: str, warmup_first: bool, wrapped: bool) -> None:
    make, rate = CLOSED_FORMS[name]
    optimizer: Any = sgd(0.5)
    if warmup_first:
        md.WarmupLR(optimizer, WARMUP, start_factor=0.25)
    if wrapped:
        optimizer = md.DistributedOptimizer(optimizer)
    scheduler = make(optimizer)
    if not warmup_first:
        md.WarmupLR(optimizer, WARMUP, start_factor=0.25)
    for step in range(STEPS):
        assert used_rate(optimizer) == pytest.approx(rate(step) * ramp(step), rel=1e-9)
        scheduler.step()


def test_composes_with_an_epoch_scheduler() -> None:
    optimizer = sgd(0.5)
    md.WarmupLR(optimizer, WARMUP, start_factor=0.25)
    scheduler = lr_scheduler.StepLR(optimizer, 1, 0.1)
    for step in range(STEPS):
        epoch = step // 3
        assert used_rate(optimizer) == pytest.approx(0.5 * 0.1**epoch * ramp(step), rel=1e-9)
        if step % 3 == 2:
            scheduler.step()


def test_composes_with_reduce_on_plateau() -> None:
    optimizer = sgd(0.5)
    md.WarmupLR(optimizer, WARMUP, start_factor=0.25)
    scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    full = 0.5
    for step, loss in enumerate([3.0, 2.0, 2.5, 1.0, 1.5, 1.2, 0.5, 0.4]):
        assert used_rate(optimizer) == pytest.approx(full * ramp(step), rel=1e-12)
        scheduler.step(loss)
        full *= 0.5 if step in (2, 4, 5) else 1.0
    assert optimizer.param_groups[0]["lr"] == full


def test_a_rate_in_a_tensor_stays_the_same_tensor() -> None:
    rate = torch.tensor(0.5, dtype=torch.float64)
    optimizer = sgd(rate)
    md.WarmupLR(optimizer, WARMUP, start_factor=0.25)
    for step in range(STEPS):
        assert used_rate(optimizer) == pytest.approx(0.5 * ramp(step), rel=1e-12)
        assert optimizer.param_groups[0]["lr"] is rate
        assert rate.item() == 0.5


def test_groups_added_later_warm_up_too() -> None:
    optimizer = sgd(0.5)
    warmup = md.WarmupLR(optimizer, 4, start_factor=0.0)
    used_rate(optimizer)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 2.0})
    used_rate(optimizer)
    assert warmup.get_last_lr() == [0.5 / 4, 2.0 / 4]


def test_steps_that_grad_scaler_skips_do_not_count() -> None:
    optimizer = sgd(0.5)
    warmup = md.WarmupLR(optimizer, WARMUP, start_factor=0.25)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    (parameter,) = optimizer.param_groups[0]["params"]
    for value in (math.inf, 1.0):
        loss = scaler.scale(parameter * value)
        optimizer.zero_grad()
        loss.backward()
        scaler.step(optimizer)
        scaler.update()
    assert warmup.steps_taken == 1


class Stubborn(torch.optim.SGD):
    """Its step raises when it is told to."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        if self.fails:
            raise RuntimeError("no step today")
        return super().step(closure)


def test_a_step_that_raises_does_not_lower_the_rate_for_good() -> None:
    parameter = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = Stubborn([parameter], lr=0.5)
    md.WarmupLR(optimizer, WARMUP, start_factor=0.25)
    optimizer.fails = True
    with pytest.raises(RuntimeError, match="no step today"):
        optimizer.step()
    optimizer.fails = False
    assert used_rate(optimizer) == pytest.approx(0.5 * 0.25)
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_state_round_trip_goes_on() -> None:
    first, second = sgd(0.5), sgd(0.5)
    warmup = md.WarmupLR(first, WARMUP, start_factor=0.25)
    scheduler = lr_scheduler.ExponentialLR(first, 0.9)
    for _ in range(3):
        used_rate(first)
        scheduler.step()
    other_warmup = md.WarmupLR(second, 100, start_factor=0.0)
    other = lr_scheduler.ExponentialLR(second, 0.9)
    second.load_state_dict(first.state_dict())
    other.load_state_dict(scheduler.state_dict())
    other_warmup.load_state_dict(warmup.state_dict())
    for step in range(3, STEPS):
        assert used_rate(second) == pytest.approx(0.5 * 0.9**step * ramp(step), rel=1e-9)
        other.step()


def copied_by_pickle(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@pytest.mark.parametrize("copied", [copied_by_pickle, copy.deepcopy], ids=["pickle", "deepcopy"])
def test_a_copy_goes_on_with_the_copy_of_its_optimizer(copied: Callable[[Any], Any]) -> None:
    first = sgd(0.5)
    warmup = md.WarmupLR(first, WARMUP, start_factor=0.25)
    for _ in range(2):
        used_rate(first)
    second, other = copied((first, warmup))
    assert second is not first and other.get_last_lr() == warmup.get_last_lr()
    for step in range(2, STEPS):
        assert used_rate(second) == pytest.approx(0.5 * ramp(step), rel=1e-12)
        assert second.param_groups[0]["lr"] == 0.5, "the full rate is back"
    assert warmup.steps_taken == 2, "the first one has taken no further step"


def test_a_copy_is_left_when_the_optimizer_is_gone() -> None:
    warmup = md.WarmupLR(sgd(0.5), WARMUP, start_factor=0.25)
    assert copied_by_pickle(warmup).state_dict() == warmup.state_dict()


def test_a_second_warmup_for_the_same_optimizer_is_no_copy() -> None:
    optimizer = sgd(0.5)
    warmup = md.WarmupLR(optimizer, WARMUP, start_factor=0.25)
    with pytest.raises(ValueError, match="the optimizer has a warm-up already"):
        copy.copy(warmup)


def test_a_distributed_optimizer_refuses_to_be_copied_with_its_warmup() -> None:
    optimizer = md.DistributedOptimizer(sgd(0.5))
    warmup = md.WarmupLR(optimizer, WARMUP, start_factor=0.25)
    with pytest.raises(TypeError, match=r"DistributedOptimizer.*state_dict\(\)"):
        pickle.dumps(warmup)


def scheduled() -> torch.optim.Optimizer:
    optimizer = sgd()
    lr_scheduler.StepLR(optimizer, 1)
    return optimizer


def warmed_up(wrapped: bool) -> torch.optim.Optimizer:
    optimizer: Any = sgd()
    md.WarmupLR(optimizer, 3)
    return md.DistributedOptimizer(optimizer) if wrapped else optimizer


WRONG = refusals(
    """
md.scale_lr('0.1')
    TypeError: got '0.1' (str), expected a learning rate
md.scale_lr(True)
    TypeError: got True (bool)
md.scale_lr(0.1, 0)
    ValueError: size is 0, expected at least 1
md.scale_lr(0.1, 2.0)
    TypeError: size is 2.0 (float), expected an int
md.scale_lr(0.1, 2, 'cube')
    ValueError: rule is 'cube', expected 'linear'
md.scale_lr(scheduled())
    ValueError: has a scheduler, which has stored … before you make the scheduler
md.WarmupLR(3, 5)
    TypeError: got int, expected a torch.optim.Optimizer
md.WarmupLR(lr_scheduler.StepLR(sgd(), 1), 5)
    TypeError: got StepLR, expected a torch.optim.Optimizer; WarmupLR works with any scheduler
md.WarmupLR(sgd(), -1)
    ValueError: steps is -1, expected at least 0
md.WarmupLR(sgd(), 2.5)
    TypeError: steps is 2.5 (float)…round
md.WarmupLR(sgd(), 5, 1.5)
    ValueError: start_factor is 1.5, expected … 0 to 1
md.WarmupLR(sgd(), 5, math.nan)
    ValueError: start_factor is nan
md.WarmupLR(sgd(), 5, 'a')
    TypeError: start_factor is 'a'
md.WarmupLR(warmed_up(False), 5)
    ValueError: the optimizer has a warm-up already
md.WarmupLR(sgd(), 5).load_state_dict({'steps': 3})
    ValueError: the state lacks start_factor, steps_taken
"""
)


@pytest.mark.parametrize(("call", "error"), WRONG)
def test_wrong_use(call: str, error: str) -> None:
    expect_refusal(call, error, globals())
