"""Metrics on one rank: weighted float64 averages, and what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from refusals import expect_refusal, refusals

import mydist as md
import mydist.metrics as metrics_module

pytestmark = pytest.mark.usefixtures("job")


def test_weighted_averages_by_name() -> None:
    metrics = md.Metrics()
    metrics.update(loss=2.0, accuracy=torch.tensor(0.5), weight=3)
    metrics.update(loss=torch.tensor([6.0], requires_grad=True), weight=torch.tensor(1))
    metrics.update(accuracy=True, steps=np.float32(7))
    assert metrics.compute() == {"accuracy": 2.5 / 4, "loss": 3.0, "steps": 7.0}
    assert list(metrics.compute()) == ["accuracy", "loss", "steps"], "what was collected stays"


def test_sums_in_float64() -> None:
    metrics = md.Metrics()
    for value in (2.0**30, 1.0, 1.0, -(2.0**30)):
        metrics.update(x=torch.tensor(value, dtype=torch.float32))
    metrics.update(x=torch.tensor(1.5, dtype=torch.bfloat16))
    metrics.update(x=torch.tensor(2**53 - 1), weight=0.5)
    assert metrics.compute() == {"x": (3.5 + (2**53 - 1) / 2) / 5.5}


def test_reset_forgets_names_too() -> None:
    metrics = md.Metrics()
    metrics.update(a=1, b=2)
    assert metrics.compute() == {"a": 1.0, "b": 2.0}
    metrics.reset()
    metrics.update(b=4)
    assert metrics.compute() == {"b": 4.0}
    metrics.update(a=5)
    assert metrics.compute() == {"a": 5.0, "b": 4.0}


def test_weight_zero_ignores_the_value() -> None:
    metrics = md.Metrics()
    metrics.update(loss=torch.empty(0).mean(), weight=0)
    metrics.update(loss=3.0)
    assert metrics.compute() == {"loss": 3.0}


def test_values_on_a_device_are_combined_there() -> None:
    # What update() does when it must not look at the numbers; here the device is the CPU.
    two, nothing = torch.tensor(2.0).double(), torch.tensor(0.0).double()
    nan = torch.tensor(math.nan).double()
    assert torch.as_tensor(metrics_module._product(two, 1.5)).item() == 3.0
    assert torch.as_tensor(metrics_module._product(1.5, two)).item() == 3.0
    assert torch.as_tensor(metrics_module._product(nan, nothing)).item() == 0.0
    assert metrics_module._product(nan, 0.0) == 0.0


def test_nan_is_passed_on() -> None:
    metrics = md.Metrics()
    metrics.update(loss=math.nan)
    assert math.isnan(metrics.compute()["loss"])


def test_a_refused_update_changes_nothing() -> None:
    metrics = md.Metrics()
    metrics.update(a=1, b=1)
    with pytest.raises(ValueError, match="b has shape"):
        metrics.update(a=9, b=torch.ones(2))
    assert metrics.compute() == {"a": 1.0, "b": 1.0}


def update(**values: Any) -> Callable[[], object]:
    return lambda: md.Metrics().update(**values)


def all_weights_zero() -> None:
    metrics = md.Metrics()
    metrics.update(acc=1, weight=0)
    metrics.compute()


WRONG = refusals(
    """
md.Metrics().update(loss=torch.ones(2, 3))
    ValueError: loss has shape [2, 3], expected one number; pass loss.mean() with weight=loss
md.Metrics().update(loss='0.5')
    TypeError: loss is of type str, expected a real number
md.Metrics().update(loss=1j)
    TypeError: loss is of type complex, expected a real
md.Metrics().update(loss=1, weight=-1)
    ValueError: weight is -1.0, expected a finite number of at least
md.Metrics().update(loss=1, weight=math.nan)
    ValueError: weight is nan
md.Metrics().update(loss=1, weight=torch.ones(2))
    ValueError: weight has shape [2]
md.Metrics().compute()
    ValueError: no rank has updated a metric since … update(
all_weights_zero()
    ValueError: weights of 'acc' add up to 0 on all ranks together
md.Metrics(name=3)
    TypeError: name is 3 (int), expected a str
md.Metrics(name='')
    ValueError: name is empty
md.Metrics(process_set=0)
    TypeError: process_set is 0 (int)
"""
)


@pytest.mark.parametrize(("call", "error"), WRONG)
def test_wrong_use(call: str, error: str) -> None:
    expect_refusal(call, error, globals())
