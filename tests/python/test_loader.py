"""prepare_loader: the settings of the given loader, epochs counted, resumable between batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from refusals import expect_refusal, refusals
from torch.utils.data import (
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
)

import mydist as md

pytestmark = pytest.mark.usefixtures("job")


class Numbers(Dataset[int]):
    """Sample i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self.length:
            raise IndexError(index)
        return index


class Noise(Numbers):
    """Samples are random numbers of the process that fetches them."""

    def __getitem__(self, index: int) -> Any:
        return random.random(), torch.rand(()).item()


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(4))


class OwnLoader(DataLoader[int]):
    pass


def collate(samples: list[int]) -> list[int]:
    return samples


def seen(loader: DataLoader[Any]) -> list[Any]:
    return [batch.tolist() if isinstance(batch, torch.Tensor) else batch for batch in loader]


def test_keeps_the_settings() -> None:
    generator = torch.Generator()
    given = {
        "batch_size": 3,
        "num_workers": 1,
        "collate_fn": collate,
        "drop_last": True,
        "timeout": 20,
        "worker_init_fn": print,
        "multiprocessing_context": "fork",
        "generator": generator,
        "prefetch_factor": 3,
        "persistent_workers": True,
        "in_order": False,
    }
    before = DataLoader(Numbers(10), **given)  # type: ignore[arg-type]
    after = md.prepare_loader(before)
    assert isinstance(after, DataLoader)
    assert after.dataset is before.dataset
    for name in given:
        assert getattr(after, name) == getattr(before, name), name
    pinned = md.prepare_loader(DataLoader(Numbers(4), pin_memory=True, batch_size=None))
    assert pinned.pin_memory
    assert pinned.batch_size is None
    assert seen(md.prepare_loader(before, num_workers=0, prefetch_factor=None,
                                  persistent_workers=False, timeout=0,
                                  multiprocessing_context=None)) != []  # fmt: skip


@pytest.mark.parametrize(
    ("loader", "shuffled"),
    [
        (DataLoader(Numbers(30)), False),
        (DataLoader(Numbers(30), shuffle=True), True),
        (DataLoader(Numbers(30), sampler=RandomSampler(Numbers(30))), True),
        (DataLoader(Numbers(30), sampler=SequentialSampler(Numbers(30))), False),
        (Numbers(30), True),
        (Subset(Numbers(40), range(30)), True),
    ],
)
def test_shuffles_as_the_loader_does(loader: Any, shuffled: bool) -> None:
    prepared = md.prepare_loader(loader, batch_size=30)
    (first,), (second,) = seen(prepared), seen(prepared)
    assert sorted(first) == sorted(second) == list(range(30))
    assert (first != second) == shuffled, "every loop is an epoch of its own"
    (ordered,) = seen(md.prepare_loader(loader, shuffle=False, batch_size=30))
    assert ordered == list(range(30))


def test_takes_over_a_distributed_sampler() -> None:
    ours = md.DistributedSampler(30, seed=7)
    theirs = torch.utils.data.DistributedSampler(Numbers(30), 1, 0, seed=7)
    wanted = list(ours)
    for sampler in (ours, theirs):
        prepared = md.prepare_loader(DataLoader(Numbers(30), batch_size=30, sampler=sampler))
        assert seen(prepared) == [wanted]
    assert seen(md.prepare_loader(md.prepare_loader(Numbers(30), seed=7, batch_size=30))) == [
        wanted
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_state_is_exact_between_batches_and_goes_on(workers: int) -> None:
    options: dict[str, Any] = {"batch_size": 4, "num_workers": workers, "seed": 3}
    whole = md.prepare_loader(Numbers(30), **options)
    epochs = [seen(whole) for _ in range(3)]
    loader = md.prepare_loader(Numbers(30), **options)
    assert seen(loader) == epochs[0]
    for count, batch in enumerate(loader, start=1):
        assert batch.tolist() == epochs[1][count - 1]
        if count == 3:
            break
    state = loader.state_dict()
    assert (state["epoch"], state["consumed"]) == (1, 12)
    resumed = md.prepare_loader(Numbers(30), **options)
    resumed.load_state_dict(state)
    assert len(resumed) == 5
    assert seen(resumed) == epochs[1][3:]
    assert len(resumed) == 8
    assert resumed.state_dict()["epoch"] == 2
    assert seen(resumed) == epochs[2]
    assert seen(loader) == epochs[2], "a loop that was left early is not continued"


def test_state_with_persistent_workers_and_single_samples() -> None:
    for batch_size in (None, 2):
        options: dict[str, Any] = {"batch_size": batch_size, "num_workers": 1}
        loader = md.prepare_loader(Numbers(6), persistent_workers=True, **options)
        epochs = [seen(loader), seen(loader)]
        assert epochs[0] != epochs[1]
        other = md.prepare_loader(Numbers(6), persistent_workers=True, **options)
        other.load_state_dict(loader.state_dict() | {"epoch": 1, "consumed": 4})
        skipped = 4 // (batch_size or 1)
        assert seen(other) == epochs[1][skipped:]
        assert seen(other) == seen(loader)


def test_set_epoch_by_hand_is_understood() -> None:
    loader = md.prepare_loader(Numbers(30), batch_size=30)
    epochs = [seen(loader) for _ in range(3)]
    again = md.prepare_loader(Numbers(30), batch_size=30)
    by_hand = []
    for epoch in (2, 1, 1):
        again.set_epoch(epoch)
        by_hand.append(seen(again))
    assert by_hand == [epochs[2], epochs[1], epochs[1]]


def test_workers_draw_numbers_that_do_not_depend_on_torchs_seed() -> None:
    def noise(seed: int) -> list[Any]:
        torch.manual_seed(seed)
        loader = md.prepare_loader(Noise(4), batch_size=None, num_workers=1)
        return [list(loader), list(loader)]

    first, second = noise(1), noise(2)
    assert first == second, "seeded from seed, epoch and rank"
    assert first[0] != first[1], "other numbers in every epoch"
    before = torch.get_rng_state()
    list(md.prepare_loader(Numbers(4)))
    assert torch.equal(torch.get_rng_state(), before), "torch's own stream is left alone"


def test_drop_last_and_join() -> None:
    loader = md.prepare_loader(DataLoader(Numbers(10), batch_size=4, drop_last=True), tail="join")
    assert [len(batch) for batch in seen(loader)] == [4, 4]
    assert loader.state_dict()["epoch"] == 1
    assert loader.state_dict()["consumed"] == 0


prepare = md.prepare_loader
N = Numbers(8)
WRONG = refusals(
    """
prepare(Stream())
    ValueError: Stream is an IterableDataset…mydist.rank()
prepare(DataLoader(N, batch_sampler=torch.utils.data.BatchSampler(RandomSampler(N), 2, False)))
    ValueError: has the batch_sampler BatchSampler… make a loader with batch_size=
prepare(DataLoader(N, sampler=torch.utils.data.WeightedRandomSampler([1.0] * 8, 8)))
    ValueError: has a WeightedRandomSampler, which selects the samples itself
prepare(DataLoader(N, sampler=RandomSampler(N, replacement=True)))
    ValueError: a RandomSampler with replacement or num_samples
prepare(DataLoader(N, sampler=[0, 1]))
    ValueError: has a list, which selects
prepare(OwnLoader(N))
    ValueError: is a OwnLoader…sampler=mydist.DistributedSampler
prepare(N, sampler=[0])
    ValueError: got sampler=, but prepare_loader makes
prepare(5)
    TypeError: got int, expected a DataLoader or a dataset
prepare(N, batch_sise=3)
    TypeError: batch_sise
prepare(N, tail='no')
    ValueError: tail is 'no', expected 'pad'
prepare(N, seed=-2)
    ValueError: seed is -2
prepare(Numbers(0))
    ValueError: the dataset has 0 samples
prepare(N).load_state_dict({'epoch': 1})
    ValueError: the state lacks consumed
"""
)


@pytest.mark.parametrize(("call", "error"), WRONG)
def test_wrong_use(call: str, error: str) -> None:
    expect_refusal(call, error, globals())
