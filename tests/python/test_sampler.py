"""DistributedSampler: exact for any number of ranks, and resumable with another number."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from refusals import expect_refusal, refusals
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler as TorchSampler

import mydist as md

pytestmark = pytest.mark.usefixtures("job")

LENGTHS_AND_RANKS = [(1, 1), (3, 4), (7, 2), (12, 4), (13, 5), (100, 7), (101, 3)]


class Seat:
    """The place of one rank in a job of any size, without the job."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size


def samplers(length: int, ranks: int, **options: Any) -> list[md.DistributedSampler]:
    """Those of all ranks of a job."""
    made = [md.DistributedSampler(length, **options) for _ in range(ranks)]
    for rank, sampler in enumerate(made):
        sampler.process_set = untyped(Seat(rank, ranks))
    return made


def untyped(value: object) -> Any:
    """A wrong argument that the type checker must not see."""
    return value


def take(sampler: md.DistributedSampler, count: int) -> list[int]:
    """The first samples of an iteration that goes no further."""
    iterator = iter(sampler)
    return [next(iterator) for _ in range(count)]


@pytest.mark.parametrize(
    ("length", "ranks", "tail"),
    [(n, ranks, "pad") for n, ranks in LENGTHS_AND_RANKS]
    + [(n, ranks, "drop") for n, ranks in LENGTHS_AND_RANKS if n >= ranks],
)
@pytest.mark.parametrize("shuffle", [True, False])
def test_gives_what_torchs_sampler_gives(length: int, ranks: int, tail: str, shuffle: bool) -> None:
    for rank, ours in enumerate(samplers(length, ranks, shuffle=shuffle, seed=5, tail=tail)):
        theirs = TorchSampler(
            range(length), ranks, rank, shuffle=shuffle, seed=5, drop_last=tail == "drop"
        )
        for epoch in (0, 1, 7):
            ours.set_epoch(epoch)
            theirs.set_epoch(epoch)
            assert list(ours) == list(theirs)
            assert len(ours) == len(theirs)


@pytest.mark.parametrize(("length", "ranks"), LENGTHS_AND_RANKS)
@pytest.mark.parametrize("shuffle", [True, False])
def test_join_gives_every_sample_exactly_once(length: int, ranks: int, shuffle: bool) -> None:
    shares = [list(s) for s in samplers(length, ranks, shuffle=shuffle, tail="join")]
    assert sorted(sum(shares, [])) == list(range(length))
    assert [len(s) for s in samplers(length, ranks, tail="join")] == [len(s) for s in shares]
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize(("length", "ranks"), LENGTHS_AND_RANKS)
def test_pad_repeats_the_first_of_the_epoch(length: int, ranks: int) -> None:
    shares = [list(s) for s in samplers(length, ranks)]
    dealt = [shares[i % ranks][i // ranks] for i in range(ranks * len(shares[0]))]
    assert sorted(dealt[:length]) == list(range(length))
    assert dealt[length:] == dealt[: len(dealt) - length]


def test_every_epoch_and_seed_has_an_order_of_its_own() -> None:
    sampler = md.DistributedSampler(50, seed=1)
    first = list(sampler)
    assert first == list(sampler), "the same epoch again"
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert list(md.DistributedSampler(50, seed=9)) != first


def test_takes_anything_with_a_length() -> None:
    data = torch.utils.data.TensorDataset(torch.arange(6))
    assert sorted(md.DistributedSampler(data)) == list(range(6))
    loader = DataLoader(data, batch_size=4, sampler=md.DistributedSampler(data, shuffle=False))
    assert [batch[0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5]]


@pytest.mark.parametrize("tail", ["pad", "drop", "join"])
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (4, 1), (3, 5)])
def test_resumes_with_any_number_of_ranks(tail: str, before: int, after: int) -> None:
    length, taken = 50, 6
    first = samplers(length, before, seed=2, tail=tail)
    for sampler in first:
        sampler.set_epoch(3)
    seen = [index for sampler in first for index in take(sampler, taken)]
    states = [sampler.state_dict() for sampler in first]
    assert all(state == states[0] for state in states)
    second = samplers(length, after, seed=2, tail=tail)
    for sampler in second:
        sampler.load_state_dict(states[0])
        sampler.set_epoch(3)  # What a script does that counts epochs itself.
    lengths = [len(sampler) for sampler in second]
    rest = [list(sampler) for sampler in second]
    assert lengths == [len(share) for share in rest]
    counts = Counter(seen + sum(rest, []))
    left = length - before * taken
    assert len(counts) == length - (left % after if tail == "drop" else 0)
    repeated = -left % after if tail == "pad" else 0
    assert sum(counts.values()) == len(counts) + repeated
    for sampler in second:
        sampler.set_epoch(4)
    assert len(second[0]) == len(samplers(length, after, tail=tail)[0]), "whole epochs follow"


def test_resumes_twice_in_an_epoch() -> None:
    (whole,) = samplers(20, 1)
    wanted = list(whole)
    (one,), (two,), (three,) = samplers(20, 1), samplers(20, 1), samplers(20, 1)
    got = take(one, 5)
    two.load_state_dict(one.state_dict())
    got += take(two, 7)
    three.load_state_dict(two.state_dict())
    assert got + list(three) == wanted
    assert list(three) == wanted, "a second iteration is a whole one"


def test_a_finished_epoch_resumes_in_the_next() -> None:
    (sampler,) = samplers(9, 1)
    sampler.set_epoch(2)
    assert len(list(sampler)) == 9
    (other,) = samplers(9, 1)
    other.load_state_dict(sampler.state_dict())
    assert other.epoch == 3
    assert len(list(other)) == 9


def test_an_epoch_begins_anew_unless_it_was_loaded() -> None:
    (sampler,) = samplers(9, 1)
    wanted = list(sampler)
    take(sampler, 4)
    assert list(sampler) == wanted
    take(sampler, 4)
    sampler.set_epoch(0)
    assert list(sampler) == wanted


class Unsized:
    pass


STATE = {"epoch": 0, "consumed": 0, "length": 10, "seed": 0, "shuffle": True}
make = md.DistributedSampler
WRONG = refusals(
    """
make(0)
    ValueError: the dataset has 0 samples, expected at least one
make([])
    ValueError: the dataset has 0 samples
make(True)
    TypeError: dataset is bool, expected a dataset with a length
make(Unsized())
    TypeError: Unsized, … itertools.islice
make(5, tail='wrap')
    ValueError: tail is 'wrap', expected 'pad' … 'join'
make(5, seed=-1)
    ValueError: seed is -1, expected a number from 0
make(5, seed=1.5)
    TypeError: seed is 1.5 (float), expected an int
make(5).set_epoch(-1)
    ValueError: epoch is -1
make(5, process_set=[0])
    TypeError: process_set is [0] (list)
make(5, process_set=md.ProcessSet([0]))
    ValueError: DistributedSampler: ProcessSet([0]) is not part of the job
make(10).load_state_dict({})
    ValueError: the state lacks epoch, consumed, length
make(10).load_state_dict(STATE | {'length': 9})
    ValueError: taken with length 9, but this sampler has 10
make(10).load_state_dict(STATE | {'consumed': 11})
    ValueError: consumed is 11, expected a number from 0 to 10
make(10).load_state_dict(STATE | {'epoch': 'x'})
    TypeError: epoch is 'x'
"""
)


@pytest.mark.parametrize(("call", "error"), WRONG)
def test_wrong_use(call: str, error: str) -> None:
    expect_refusal(call, error, globals())
