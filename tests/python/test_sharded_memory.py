"""The layout of slices and the memory plan: pure arithmetic, against the formulas of ZeRO."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

import mydist as md
from mydist.optim.sharded.layout import LINE_BYTES, owners, plan_buckets

AdamW = torch.optim.AdamW


def sizes(*counts: int, dtype: torch.dtype = torch.float32) -> list[tuple[int, torch.dtype, int]]:
    return [(index, dtype, count) for index, count in enumerate(counts)]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("counts", [(1000, 7, 1, 0, 333), (1,), (0,), (5, 4096, 17)])
def test_every_element_has_one_owner(ranks: int, counts: tuple[int, ...]) -> None:
    buckets = plan_buckets(sizes(*counts), ranks, most_bytes=4096)
    owners = [[0] * count for count in counts]
    for bucket in buckets:
        assert 0 <= bucket.padding * 4 < LINE_BYTES * ranks
        for rank in range(ranks):
            pieces = bucket.pieces(rank)
            at = 0
            for piece in pieces:
                assert piece.offset == at
                at += piece.length
                for element in range(piece.start, piece.start + piece.length):
                    owners[piece.index][element] += 1
            assert at <= bucket.slice_length(rank)
    assert owners == [[1] * count for count in counts]


def test_whole_parameters_go_to_who_has_least() -> None:
    counts = sizes(10, 900, 500, 0, 400, 20)
    owner_of = owners(counts, 2)
    assert owner_of == {1: 0, 2: 1, 4: 1, 5: 0, 0: 1, 3: 1}
    buckets = plan_buckets(counts, 2, owner_of=owner_of)
    members = {bucket.owner: bucket.members for bucket in buckets}
    assert members == {0: ((5, 20), (1, 900)), 1: ((4, 400), (2, 500), (0, 10))}
    for bucket in buckets:
        assert bucket.padding == 0
        for piece in bucket.pieces(bucket.owner or 0):
            assert (piece.start, piece.length) == (0, counts[piece.index][2])
        assert bucket.pieces(1 - (bucket.owner or 0)) == []
    # Parameters that are thawed later go to the rank with the least load by then.
    assert owners(sizes(7), 2, buckets) == {0: 1}


def test_buckets_run_against_registration_one_dtype_each() -> None:
    mixed = [
        (0, torch.float32, 100),
        (1, torch.bfloat16, 50),
        (2, torch.float32, 900),
        (3, torch.float32, 200),
    ]
    members = [bucket.members for bucket in plan_buckets(mixed, 2, most_bytes=4400)]
    assert members == [((3, 200), (2, 900)), ((1, 50),), ((0, 100),)]


def test_a_bucket_has_a_sixteenth_of_the_parameters_within_bounds() -> None:
    for count, expected in ((1 << 10, 1), (1 << 20, 4), (16 << 20, 16), (1 << 30, 128)):
        # Two hundred and fifty-six parameters that fit evenly.
        buckets = plan_buckets(sizes(*[count // 256] * 256), 2)
        assert len(buckets) == expected, count


def stack(dtype: torch.dtype, width: int = 1 << 10, layers: int = 4) -> torch.nn.Module:
    with torch.device("meta"):
        return torch.nn.Sequential(
            *(torch.nn.Linear(width, width, bias=False, dtype=dtype) for _ in range(layers))
        )


def test_the_table_of_the_paper() -> None:
    # 7.5 billion parameters in bfloat16: 60 square layers.
    model = stack(torch.bfloat16, 11180, 60)
    plan = md.memory_plan(model, 2, 64, AdamW, master_dtype=torch.float32)
    states = [u.parameters + u.gradients + u.optimizer for u in plan.stages.values()]
    assert [round(count / 1e9, 1) for count in states] == [120.0, 31.4, 16.6, 1.9]
    assert plan.use == plan.stages[2]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_bytes_are_those_of_the_formulas(size: int) -> None:
    model = stack(torch.float32)
    n = sum(p.numel() for p in model.parameters())
    plan = md.memory_plan(model, 1, size, AdamW)
    expected = {0: 16 * n, 1: 8 * n + 8 * n / size, 2: 4 * n + 12 * n / size, 3: 16 * n / size}
    for stage, use in plan.stages.items():
        states = use.parameters + use.gradients + use.optimizer
        # 12 bytes an element, in a slice that is at most a line too long for each of four buckets.
        # Stage 3 cuts between rows: one more of 1024 elements for each of four parameters.
        slack = 0 if size in (1, 2, 4, 8) else 4 * (16 * 1024 if stage == 3 else 12 * 16)
        assert 0 <= states - expected[stage] <= slack, (stage, states)


def test_buckets_and_units_are_counted() -> None:
    model = stack(torch.float32)
    plan = md.memory_plan(model, 2, 2, AdamW)
    # A layer has 4 MiB, more than a sixteenth of all: a bucket each. Stage 3 gathers two layers.
    assert plan.stages[2].buckets == 3 * (4 << 20)
    assert plan.stages[3].buckets == 2 * (4 << 20)
    assert plan.stages[1].buckets == 4 << 20
    assert plan.stages[0].buckets == 0


def momentum_of(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


@pytest.mark.parametrize(
    ("optimizer", "state_bytes"),
    [
        (AdamW, 8),
        (functools.partial(AdamW, amsgrad=True), 12),
        (torch.optim.SGD, 0),
        (momentum_of, 4),
        (torch.optim.Adagrad, 4),
        (AdamW([torch.nn.Parameter(torch.zeros(1))], amsgrad=True), 12),
    ],
)
def test_the_state_of_an_optimizer_is_found_by_a_step(optimizer: Any, state_bytes: int) -> None:
    model = stack(torch.float32)
    n = sum(p.numel() for p in model.parameters())
    assert md.memory_plan(model, 0, 1, optimizer).use.optimizer == state_bytes * n


@pytest.mark.parametrize("layers", [16, 256])
@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_each_stage_takes_less_than_the_one_before(size: int, layers: int) -> None:
    model = stack(torch.float32, 1024, layers)
    totals = [md.memory_plan(model, stage, size, AdamW).use.total for stage in (0, 1, 2, 3)]
    assert totals == sorted(totals, reverse=True), totals


def test_frozen_parameters_have_neither_gradient_nor_state() -> None:
    model = stack(torch.float32)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    use = md.memory_plan(model, 1, 4, AdamW).use
    assert (use.gradients, use.optimizer) == (0, 0)
    assert use.parameters == 4 * 4 << 20


def test_the_text_is_a_table() -> None:
    text = str(md.memory_plan(stack(torch.float32, 16000, 1), 2, 4, AdamW))
    assert text.splitlines()[0] == "memory of one rank of 4, in GB (10^9 bytes)"
    assert text.splitlines()[2].split() == ["0", "1.024", "1.024", "2.048", "0", "0", "4.096"]
    assert text.splitlines()[4].split()[0] == "*2"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((torch.zeros(1), 1, 2, AdamW), r"\(Tensor\), expected a torch.nn.Module"),
        ((torch.nn.Linear(1, 1), 4, 2, AdamW), "stage is 4, expected 0, 1, 2 or 3"),
        ((torch.nn.Linear(1, 1), 1, 0, AdamW), "size is 0, expected a number of ranks"),
        ((torch.nn.Linear(1, 1), 1, 2, "AdamW"), r"\(str\), expected a class"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        md.memory_plan(*arguments)
