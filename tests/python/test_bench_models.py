"""Models of the training-step benchmark: equal on every rank, with data that differ."""

from __future__ import annotations

import pytest
import torch

from mydist.bench.models import MODELS, make_workload


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("conv", 417_482),
        ("resnet", 2_884_714),
        ("resnet50", 25_557_032),
        ("gpt", 2_175_744),
    ],
)
def test_models(name: str, parameters: int) -> None:
    first, second = make_workload(name, 3, rank=0), make_workload(name, 3, rank=1)
    assert sum(p.numel() for p in first.model.parameters()) == parameters
    for mine, theirs in zip(first.model.parameters(), second.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    assert not torch.equal(first.inputs, second.inputs)
    scores = first.model(first.inputs)
    assert scores.shape[0] == 3
    assert first.labels.shape == (3,)
    assert int(first.labels.max()) < scores.shape[1]


def test_there_are_no_others() -> None:
    assert set(MODELS) == {"conv", "resnet", "resnet50", "gpt"}
