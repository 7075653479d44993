"""What codecs keep from step to step: its units, and its place in a checkpoint."""

from __future__ import annotations

import pytest
import torch

from mydist.optim.encoding.residuals import Residuals, Units
from mydist.optim.encoding.units import StepUnits


class Clock:
    """Units that a test sets."""

    def __init__(self) -> None:
        self.units: Units = (None, None)

    def __call__(self, name: str) -> Units:
        return self.units


@pytest.mark.parametrize(
    ("then", "now", "factor"),
    [
        ((0.1, None), (0.05, None), 2.0),  # Half the rate: twice the residual has the same effect.
        ((0.1, None), (0.1, None), 1.0),
        ((0.0, None), (0.1, None), 1.0),
        ((0.1, None), (0.0, None), 1.0),
        ((None, 8.0), (None, 32.0), 4.0),
        ((None, None), (None, 65536.0), 1.0),
        ((0.1, 8.0), (0.2, 4.0), 0.25),
    ],
)
def test_a_residual_keeps_its_effect_when_its_units_change(
    then: Units, now: Units, factor: float
) -> None:
    clock = Clock()
    residuals = Residuals(clock)
    residuals.tensors("sent", ["w"], [4])
    clock.units = then
    residuals.kept(["w"])
    clock.units = now
    assert residuals.factors(["w"]) == [factor]


def test_a_residual_that_was_never_kept_has_no_units() -> None:
    clock = Clock()
    residuals = Residuals(clock)
    residuals.tensors("sent", ["w"], [4])
    clock.units = (0.1, 65536.0)
    assert residuals.factors(["w"]) == [1.0]


def test_saved_residuals_are_copies_with_their_units() -> None:
    clock = Clock()
    residuals = Residuals(clock)
    (tensor,) = residuals.tensors("sent", ["w"], [3])
    tensor.fill_(2.0)
    clock.units = (0.1, 2.0)
    residuals.kept(["w"])
    saved = residuals.state_dict()
    tensor.zero_()
    other = Residuals(clock)
    other.load_state_dict(saved)
    assert other.tensors("sent", ["w"], [3])[0].tolist() == [2.0] * 3
    clock.units = (0.2, 2.0)
    assert other.factors(["w"]) == [0.5]
    other.drop()
    assert other.state_dict() == {}


def test_units_are_the_rate_of_the_group_and_the_scale_of_the_scaler() -> None:
    first, second = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.5}, {"params": [second], "lr": 0.1}])
    units = StepUnits()
    assert units(first) == (None, None)
    units.attach(optimizer)
    assert units(first) == (0.5, None) and units(second) == (0.1, None)
    optimizer.load_state_dict(optimizer.state_dict())  # Makes new groups.
    optimizer.param_groups[1]["lr"] = torch.tensor(0.25)
    assert units(second) == (0.25, None)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    units.note_scaler("something else")
    units.note_scaler(scaler)
    assert units(first) == (0.5, 1024.0)
