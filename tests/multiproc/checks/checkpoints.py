"""Checkpoint on several ranks: only rank 0 has the folder, all get the state and the errors."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import mydist as md
from multiproc.reference import raw
from multiproc.registry import check


@contextmanager
def folder() -> Iterator[Path]:
    """A folder of this rank's own, as on hosts without a shared disk."""
    path = Path(tempfile.mkdtemp(prefix="mydist_checkpoint_"))
    try:
        yield path
    finally:
        shutil.rmtree(path)


class Trained:
    """A small training run in which every step draws random numbers, other ones on each rank."""

    def __init__(self, seed: int) -> None:
        torch.manual_seed(seed)
        random.seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2)
        )
        md.broadcast_parameters(self.model.state_dict(), root_rank=0)
        self.optimizer = md.DistributedOptimizer(
            torch.optim.AdamW(self.model.parameters(), lr=0.01),
            named_parameters=self.model.named_parameters(),
        )
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)

    def checkpoint(self, path: Path, **options: Any) -> md.Checkpoint:
        return md.Checkpoint(
            path,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            **options,
        )

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(3, 4) * random.random()).pow(2).sum().backward()
        self.optimizer.step()
        self.scheduler.step()

    def state(self) -> Any:
        moments = self.optimizer.state_dict()["state"]
        return (
            [raw(p) for p in self.model.parameters()],
            [[raw(value) for value in entry.values()] for entry in moments.values()],
            self.scheduler.get_last_lr(),
            random.random(),
            float(torch.rand(())),
        )


def expect_everywhere(kind: type[Exception], call: Callable[[], Any], *parts: str) -> None:
    """The call fails on every rank with this type and these parts; the job then goes on."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except kind as error:
        text = str(error)
    else:
        raise AssertionError(f"no {kind.__name__}")
    texts = md.allgather_object(text)
    assert len(set(texts)) == 1, texts
    for part in parts:
        assert part in text, f"'{part}' is not in: {text}"
    assert md.allreduce(torch.ones(1), op=md.Sum).item() == md.size()


@check()
def resumed_training_is_bitwise_the_uninterrupted_one() -> None:
    with folder() as path:
        whole = Trained(seed=md.rank())
        with whole.checkpoint(path) as checkpoint:
            for step in range(7):
                if step == 3:
                    checkpoint.save(step, extras={"note": "half"})
                whole.step()
        wanted = whole.state()
        assert bool(list(path.iterdir())) == (md.rank() == 0), "only rank 0 writes"

        resumed = Trained(seed=100 + md.rank())
        resumed.step()  # so that every state is another one
        with resumed.checkpoint(path) as checkpoint:
            assert checkpoint.step == 3 and checkpoint.extras == {"note": "half"}
            for _ in range(checkpoint.step, 7):
                resumed.step()
        assert resumed.state() == wanted
    draws = md.allgather_object(wanted[-1])
    assert len(set(draws)) == md.size(), "the ranks' generators should differ"


@check()
def a_damaged_newest_is_skipped_on_all_ranks() -> None:
    with folder() as path:
        trained = Trained(seed=0)
        with trained.checkpoint(path) as checkpoint:
            for step in (1, 2):
                trained.step()
                newest = checkpoint.save(step)
            if md.rank() == 0:
                newest.write_bytes(newest.read_bytes()[:-50])
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                assert checkpoint.restore() == 1
            said = [str(w.message) for w in caught if "is skipped" in str(w.message)]
            assert len(said) == (md.rank() == 0), said
            assert all(f"'{newest}' is skipped: it is cut off" in text for text in said)
            if md.rank() == 0:
                (path / "step-000000001.pt").write_bytes(b"nothing")
            expect_everywhere(
                md.MydistError, checkpoint.restore, "can be restored", "Move them away"
            )


@check()
def what_rank_0_does_not_find_is_missing_for_all() -> None:
    with folder() as path, Trained(seed=0).checkpoint(path) as checkpoint:
        shown = md.broadcast_object(str(path))
        assert checkpoint.step == 0 and checkpoint.restore() == 0
        expect_everywhere(
            FileNotFoundError,
            lambda: checkpoint.restore(path / "other.pt"),
            f"resume='{shown}/other.pt': there is no such file",
        )
        expect_everywhere(
            FileNotFoundError, lambda: checkpoint.restore(path), "the folder has no checkpoint"
        )


class Stateful:
    """Gives its state, or fails to, on rank 0."""

    def __init__(self, state: Callable[[], Any]) -> None:
        self._state = state

    def state_dict(self) -> Any:
        return self._state()

    def load_state_dict(self, state: Any) -> None:
        pass


class OwnError(Exception):
    """An exception that the other ranks could not unpickle."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


def fail() -> Any:
    raise OwnError(1, 2)


@check()
def state_that_fails_or_cannot_be_saved_is_an_error_everywhere() -> None:
    with folder() as path:
        with md.Checkpoint(path, broken=Stateful(fail)) as checkpoint:
            expect_everywhere(
                md.MydistError,
                lambda: checkpoint.save(4),
                "checkpoint: saving step 4 failed: OwnError: 1 and 2",
            )
        with md.Checkpoint(path, odd=Stateful(lambda: {"x": OwnError(1, 2)})) as checkpoint:
            expect_everywhere(
                TypeError,
                lambda: checkpoint.save(4),
                "checkpoint: objects.odd.x (a multiproc.checks.checkpoints.OwnError) cannot be",
            )
        assert list(path.iterdir()) == []


@check(min_size=2)
def ranks_at_different_steps_are_an_error_everywhere() -> None:
    with folder() as path, Trained(seed=0).checkpoint(path) as checkpoint:
        step = 6 if md.rank() == md.size() - 1 else 5
        others = "rank 0" if md.size() == 2 else f"ranks 0-{md.size() - 2}"
        expect_everywhere(
            md.MismatchError,
            lambda: checkpoint.save(step),
            "Checkpoint.save: ranks save different steps:",
            f"  {others}: step 5\n",
            f"  rank {md.size() - 1}: step 6\n",
            "with the same step on every rank",
        )
        assert list(path.iterdir()) == []


@check()
def sigterm_on_one_rank_stops_all_at_the_same_step() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with folder() as path:
        trained = Trained(seed=0)
        stopped_at = 0
        with trained.checkpoint(path) as checkpoint:
            for step in range(1, 10):
                trained.step()
                if step == 4 and md.rank() == md.size() - 1:
                    os.kill(os.getpid(), signal.SIGTERM)
                if checkpoint.should_stop(step):
                    stopped_at = step
                    break
        steps = md.allgather_object(stopped_at)
        assert steps == [4] * md.size(), steps
        assert [p.name for p in path.iterdir()] == ["step-000000004.pt"] * (md.rank() == 0)
    assert signal.getsignal(signal.SIGTERM) == before


@check(min_size=2)
def any_rank_may_ask_to_stop() -> None:
    with folder() as path, Trained(seed=0).checkpoint(path, on_sigterm=False) as checkpoint:
        assert not checkpoint.should_stop()
        if md.rank() == 1:
            checkpoint.request_stop()
        assert checkpoint.should_stop()


@check()
def buffers_are_those_of_rank_0() -> None:
    with folder() as path:
        module = torch.nn.BatchNorm1d(2)
        module(torch.full((3, 2), 1.0 + md.rank()))
        with md.Checkpoint(path, module=module) as checkpoint:
            checkpoint.save(1)
            checkpoint.restore()
        assert module.running_mean is not None
        means = md.allgather_object(module.running_mean.tolist())
        assert all(mean == means[0] for mean in means), means


@check(min_size=3)
def a_process_set_has_its_own() -> None:
    members = md.add_process_set([1, md.size() - 1])
    with folder() as path:
        module = torch.nn.Linear(1, 1)
        if members.included():
            with md.Checkpoint(path, process_set=members, module=module) as checkpoint:
                checkpoint.save(md.size())
                assert [p.name for p in path.iterdir()] == [f"step-{md.size():09d}.pt"] * (
                    md.rank() == 1
                ), "the first rank of the set writes"
                assert checkpoint.restore() == md.size() and not checkpoint.should_stop()
        else:
            try:
                md.Checkpoint(path, process_set=members, module=module)
            except ValueError as error:
                assert f"Checkpoint: rank {md.rank()} is not in" in str(error), str(error)
            else:
                raise AssertionError("a rank outside the set took part")
    md.remove_process_set(members)
    md.barrier()  # A rank that leaves the job would end it for the members.
