"""Elastic training in one process: the sampler for any number of ranks, and the state."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import mydist as md
from mydist.elastic import sampler as sampler_module
from mydist.elastic import state as state_module
from mydist.elastic.run import refuse_other_launchers
from mydist.elastic.state import copied


class Ranks:
    """The samplers of a job whose size changes; all have the state of one at each change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, length: int, shuffle: bool) -> None:
        self.current = (0, 1)
        monkeypatch.setattr(sampler_module, "rank", lambda: self.current[0])
        monkeypatch.setattr(sampler_module, "size", lambda: self.current[1])
        self.length, self.shuffle = length, shuffle
        self.all = [self.new()]
        self.lists: list[list[int]] = []

    def new(self) -> md.elastic.ElasticSampler:
        return md.elastic.ElasticSampler(range(self.length), self.shuffle, seed=4)

    def meet(self, size: int, state: dict[str, object]) -> None:
        """These ranks, with this state, begin to iterate."""
        self.all = [self.new() for _ in range(size)]
        self.lists = []
        for rank, sampler in enumerate(self.all):
            self.current = (rank, size)
            sampler.load_state_dict(state)
            expected = len(sampler)
            self.lists.append(list(sampler))
            assert len(self.lists[-1]) == expected

    def take(self, number: int, batch: int) -> list[int]:
        """All ranks take this batch; what they took."""
        for rank, sampler in enumerate(self.all):
            self.current = (rank, len(self.all))
            taken = self.lists[rank][number * batch : (number + 1) * batch]
            assert sampler.get_indices(number, batch) == taken
            sampler.record_batch(number, batch)
        return [i for own in self.lists for i in own[number * batch : (number + 1) * batch]]


@pytest.mark.parametrize("seed", range(60))
def test_every_sample_counts_once_up_to_the_last_commit(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    ranks = Ranks(monkeypatch, chance.randint(1, 60), chance.random() < 0.7)
    committed: list[int] = []
    state = ranks.all[0].state_dict()
    while state["consumed"] < ranks.length:
        size, batch = chance.randint(1, 5), chance.randint(1, 4)
        ranks.meet(size, state)
        taken = list(committed)
        for number in range(-(-len(ranks.lists[0]) // batch)):
            taken += ranks.take(number, batch)
            if chance.random() < 0.5:
                committed, state = taken, ranks.all[-1].state_dict()
                taken = list(committed)
            if chance.random() < 0.2:
                break  # The ranks meet anew, and what was not committed is taken again.
    assert set(committed) == set(range(ranks.length))
    # Those that fill up the last batch come a second time.
    assert len(committed) < ranks.length + len(ranks.all)
    for sampler in ranks.all:
        assert sampler.state_dict()["consumed"] == ranks.length


def test_samples_that_are_recorded_one_by_one_do_not_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ranks = Ranks(monkeypatch, 10, shuffle=True)
    sampler = ranks.all[0]
    order = list(sampler)
    sampler.record_batch(0, 2)
    sampler.record_indices([order[5], order[0]])
    state = sampler.state_dict()
    assert state["consumed"] == 2
    assert state["indices"] == [order[5]]
    ranks.meet(2, state)
    left = [order[n] for n in (2, 3, 4, 6, 7, 8, 9)]
    assert ranks.lists == [left[::2], left[1::2] + left[:1]]
    ranks.take(0, 2)
    assert ranks.all[1].state_dict()["consumed"] == 7, "the one in between is done, too"
    assert ranks.all[1].state_dict()["indices"] == []


def test_an_epoch_begins_only_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = Ranks(monkeypatch, 6, shuffle=True)
    sampler = ranks.all[0]
    first = list(sampler)
    sampler.record_batch(0, 4)
    sampler.set_epoch(0)
    assert list(sampler) == first[4:]
    sampler.set_epoch(1)
    assert sorted(sampler) == list(range(6))
    with pytest.raises(ValueError, match="no iteration of this epoch has begun"):
        ranks.new().record_batch(0, 1)
    with pytest.raises(ValueError, match="taken with length 6"):
        md.elastic.ElasticSampler(range(7), seed=4).load_state_dict(sampler.state_dict())


def test_the_state_goes_back_to_the_last_commit(job: None) -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    state = md.elastic.TorchState(
        model=model, optimizer=optimizer, scheduler=scheduler, epoch=3, seen=[1]
    )

    def step() -> None:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        scheduler.step()
        state.epoch += 1
        state.seen.append(2)

    step()
    state.commit()
    kept = copied([model.state_dict(), optimizer.state_dict(), scheduler.state_dict()], None)
    for _ in range(2):  # The copy must not follow what is restored from it.
        step()
        state.restore()
        assert (state.epoch, state.seen) == (4, [1, 2])
        now = [model.state_dict(), optimizer.state_dict(), scheduler.state_dict()]
        torch.testing.assert_close(now, kept, rtol=0, atol=0)


def test_samples_that_any_rank_recorded_are_in_the_state_that_all_get(
    job: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = []

    def broadcast(value: Any, root: int, name: str) -> Any:
        told.append(value)
        return value

    monkeypatch.setattr(state_module, "size", lambda: 2)
    monkeypatch.setattr(state_module, "broadcast_object", broadcast)
    monkeypatch.setattr(sampler_module, "allgather_object", lambda own: [own, (0, [4])])
    sampler = md.elastic.ElasticSampler(range(6), shuffle=False)
    sampler.record_indices([2])
    md.elastic.TorchState(sampler=sampler).sync()
    ((small, _),) = told
    assert small["sampler"]["indices"] == [2, 4]
    assert sampler.state_dict()["indices"] == [2, 4]


def test_copies_use_their_memory_again() -> None:
    first = copied({"a": torch.ones(3), "b": [torch.zeros(2), 5]}, None)
    second = copied({"a": torch.full((3,), 2.0), "b": [torch.ones(2), 6]}, first)
    assert second["a"] is first["a"]
    assert second["b"][0] is first["b"][0]
    assert second["b"][1] == 6
    assert torch.equal(second["a"], torch.full((3,), 2.0))
    assert copied({"a": torch.ones(4)}, first)["a"].shape == (4,)


def test_without_an_elastic_job_the_function_is_called_once(job: None) -> None:
    calls: list[object] = []

    @md.elastic.run
    def train(state: md.elastic.TorchState, more: int) -> int:
        calls.append(state)
        state.commit()
        return more + 1

    state = md.elastic.TorchState(step=0)
    assert train(state, 4) == 5
    assert calls == [state]


def test_values_that_cannot_be_kept_are_refused(job: None) -> None:
    with pytest.raises(ValueError, match="'commit' is one of its methods"):
        md.elastic.TorchState(commit=1)
    model = torch.nn.Linear(2, 1)
    sharded = md.ShardedOptimizer(torch.optim.Adam(model.parameters()))
    with pytest.raises(ValueError, match="optimizer is a ShardedAdam, whose state lies in slices"):
        md.elastic.TorchState(optimizer=sharded)


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [({"RANK": "0"}, "torchrun"), ({"MYDIST_RANK": "0", "OMPI_COMM_WORLD_RANK": "0"}, "mpirun")],
)
def test_other_launchers_are_refused(environment: dict[str, str], launcher: str) -> None:
    with pytest.raises(ValueError, match=f"{launcher} has started these 4 ranks"):
        refuse_other_launchers(4, environment)
    refuse_other_launchers(1, environment)
    refuse_other_launchers(4, {"MYDIST_RANK": "0"})
