"""What an optimizer makes of a state that another strategy has saved, in a job of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import mydist as md

pytestmark = pytest.mark.usefixtures("job")


def train(weight: torch.Tensor, optimizer: Any, steps: int) -> None:
    for _ in range(steps):
        weight.grad = torch.ones_like(weight)
        optimizer.step()


def wrapped(communication: md.Strategy | None) -> tuple[torch.Tensor, Any]:
    weight = torch.nn.Parameter(torch.zeros(3))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    return weight, md.DistributedOptimizer(optimizer, communication=communication)


def anchor(optimizer: Any) -> list[float] | None:
    parts = optimizer.state_dict()["communication"]["parts"]
    return None if parts is None else parts[0]["anchor"][0].tolist()


def test_the_steps_of_each_rank_are_not_taken_from_another_strategy() -> None:
    weight, optimizer = wrapped(md.LocalSGD(every=8))
    train(weight, optimizer, 11)
    shared, own = optimizer.state_dict(), optimizer.rank_state_dict()
    weight, optimizer = wrapped(md.SlowMo(every=8))
    with pytest.warns(UserWarning, match=r"saved by LocalSGD.*is loaded into SlowMo"):
        optimizer.load_state_dict(shared)
    optimizer.load_rank_state_dict(own)
    assert weight.tolist() == [0.0] * 3, "as the checkpoint's model has it on every rank"
    train(weight, optimizer, 1)
    assert anchor(optimizer) == [0.0] * 3
    assert optimizer.state_dict()["communication"]["local_steps"] == 1


@pytest.mark.parametrize("saver", [None, md.SlowMo(every=8)])
def test_a_state_without_anchors_of_this_strategy_makes_it_begin_anew(
    saver: md.Strategy | None,
) -> None:
    _, other = wrapped(saver)
    weight, optimizer = wrapped(md.BlockMomentum(every=2))
    train(weight, optimizer, 4)
    assert anchor(optimizer) == weight.tolist() != [0.0] * 3
    with torch.no_grad():
        weight.fill_(5.0)
    optimizer.load_state_dict(other.state_dict())
    assert anchor(optimizer) is None
    train(weight, optimizer, 1)
    assert anchor(optimizer) == [5.0] * 3, "what the program has loaded into the model"


def test_a_synchronous_optimizer_says_that_it_takes_the_parameters_of_rank_0(
    tmp_path: Path,
) -> None:
    weight, optimizer = wrapped(md.LocalSGD(every=8))
    train(weight, optimizer, 3)
    with md.Checkpoint(tmp_path, optimizer=optimizer, on_sigterm=False) as checkpoint:
        checkpoint.save(3)
    _, synchronous = wrapped(None)
    with pytest.warns(UserWarning, match="all ranks take the parameters of rank 0"):
        md.Checkpoint(tmp_path, optimizer=synchronous, on_sigterm=False)
