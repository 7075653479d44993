"""State of strategies: saved in the middle of a round, restored, loaded where it does not fit; and
ranks that do not agree about the strategy."""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import torch

import mydist as md
from multiproc.checks.checkpoints import folder
from multiproc.checks.consistency import expect_mismatch, last, others_text
from multiproc.checks.models import raises, unchecked
from multiproc.checks.process_sets import added
from multiproc.checks.strategy_models import (
    BY_NAME,
    STRATEGIES,
    Trained,
    expect_equal_ranks,
    outer_adam,
    plain_steps,
    real,
)
from multiproc.reference import expect_near, raw
from multiproc.registry import check

# In the middle of a round, with a mean under way where means take time, and of the whole training.
SAVED_AT, END = 4, 9


@contextmanager
def caught() -> Iterator[list[str]]:
    """Texts of the warnings within; complete after it."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield texts
    texts += [str(warning.message) for warning in seen]


def rest(trained: Trained) -> list[list[bytes]]:
    """Trains to the end; what there is then and after finish()."""
    trained.step(END - trained.taken)
    at_end = trained.bits()
    trained.optimizer.finish()
    return [at_end, trained.bits()]


def checkpoint(path: Any, trained: Trained, **options: Any) -> md.Checkpoint:
    return md.Checkpoint(path, model=trained.model, optimizer=trained.optimizer, **options)


@check(cases=BY_NAME)
def resumed_in_a_round_training_is_bitwise_the_uninterrupted_one(name: str) -> None:
    wanted = rest(real(STRATEGIES[name]()))
    with folder() as path:
        saving = real(STRATEGIES[name]())
        saving.step(SAVED_AT)
        with checkpoint(path, saving) as saver:
            saver.save(SAVED_AT)
            stream = io.BytesIO()
            own = {"model": saving.model.state_dict(), "optimizer": saving.optimizer.state_dict()}
            torch.save(own, stream)
            stream.seek(0)
        assert rest(saving) == wanted, "saving changes how training goes on"

        for earlier in (0, 7):  # Into a new optimizer, and over other state.
            resumed = real(STRATEGIES[name]())
            resumed.step(earlier)
            with caught() as texts, checkpoint(path, resumed) as loader:
                resumed.taken = loader.step
            assert resumed.taken == SAVED_AT and texts == []
            assert rest(resumed) == wanted, f"restored by Checkpoint after {earlier} steps"
    resumed = real(STRATEGIES[name]())
    saved = torch.load(stream)
    resumed.model.load_state_dict(saved["model"])
    resumed.optimizer.load_state_dict(saved["optimizer"])
    resumed.taken = SAVED_AT
    assert rest(resumed) == wanted, "restored from files of each rank"


@check(min_size=2, cases=BY_NAME)
def at_another_size_the_anchors_are_kept_and_one_warning_says_what_is_not(name: str) -> None:
    size = md.size()
    with folder() as path, added(list(range(size - 1))) as (fewer,):
        anchors: list[bytes] = []
        if md.rank() < size - 1:
            saving = real(STRATEGIES[name](), process_set=fewer)
            saving.step(SAVED_AT + 1)
            with checkpoint(path, saving, process_set=fewer) as saver:
                saver.save(SAVED_AT)
            anchors = [raw(anchor) for anchor in saving.shared()]
        anchors = md.broadcast_object(anchors, 0)
        restored = real(STRATEGIES[name]())
        with caught() as texts, checkpoint(path, restored) as loader:
            assert loader.step == SAVED_AT
        everything = [text for of_rank in md.allgather_object(texts) for text in of_rank]
        assert len(everything) == 1, everything
        assert f"was saved by {size - 1} ranks and is restored by {size}." in everything[0]
        assert "the steps of each rank since that round are lost" in everything[0]
        assert [raw(anchor) for anchor in restored.shared()] == anchors
        restored.expect_at_anchors()
        for count in (1, 7):
            restored.step(count)
            restored.optimizer.finish()
            expect_equal_ranks(restored, f"after {count} more steps")


@check(min_size=2, cases=[("every 1",), ("start",)])
def at_another_size_nothing_is_lost_before_the_first_local_step(kind: str) -> None:
    size = md.size()
    strategy = {"every 1": md.LocalSGD(1), "start": md.PostLocalSGD(2, start=9)}[kind]
    with folder() as path, added(list(range(size - 1))) as (fewer,):
        if md.rank() < size - 1:
            saving = real(strategy, process_set=fewer)
            saving.step(SAVED_AT)
            with checkpoint(path, saving, process_set=fewer) as saver:
                saver.save(SAVED_AT)
        restored = real(strategy)
        with caught() as texts, checkpoint(path, restored) as loader:
            assert loader.step == SAVED_AT
        assert md.allgather_object(texts) == [[]] * size
        assert restored.optimizer._distribution.runs[0].steps == SAVED_AT
        restored.step(2)
        restored.optimizer.finish()
        expect_equal_ranks(restored)


@check(cases=[("block", "keep"), ("keep", "slow"), ("post", "keep"), ("diloco", "elastic")])
def the_state_of_another_strategy_is_a_warning(saved: str, loaded: str) -> None:
    saving, restored = real(STRATEGIES[saved]()), real(STRATEGIES[loaded](), prefix="other.")
    saving.step(SAVED_AT)
    state = saving.optimizer.state_dict()
    with caught() as texts:
        restored.optimizer.load_state_dict(state)
    said = f"saved by {state['communication']['strategy']} and is loaded into "
    assert len(texts) == 1 and said in texts[0], texts
    assert restored.optimizer._distribution.runs[0].strategy.describe() in texts[0]
    assert [raw(m) for m in restored.momenta()] == [raw(m) for m in saving.momenta()]
    restored.model.load_state_dict(plain_steps(0, 0).model.state_dict())
    restored.step(5)
    restored.optimizer.finish()
    expect_equal_ranks(restored)


@check()
def strategies_begin_with_a_state_that_has_none_and_end_with_one_that_has() -> None:
    synchronous, local = real(None), real(STRATEGIES["keep"](), prefix="local.")
    synchronous.step(2)
    with caught() as texts:
        local.optimizer.load_state_dict(synchronous.optimizer.state_dict())
    assert texts == [] and not local.shared()
    assert [raw(m) for m in local.momenta()] == [raw(m) for m in synchronous.momenta()]
    local.step(3)
    expect_equal_ranks(local)
    local.step(1)
    with caught() as texts:
        synchronous.optimizer.load_state_dict(local.optimizer.state_dict())
    assert texts == []
    assert [raw(m) for m in local.momenta()] == [raw(m) for m in synchronous.momenta()]


@check()
def a_plain_optimizer_takes_the_state() -> None:
    trained, plain = real(STRATEGIES["nesterov"]()), plain_steps(md.rank(), 0)
    trained.step(SAVED_AT)
    plain.model.load_state_dict(trained.model.state_dict())
    # A copy, as from a file: torch would go on with the same momenta.
    plain.optimizer.load_state_dict(deepcopy(trained.optimizer.state_dict()))
    plain.taken = trained.taken
    for one in (trained, plain):
        one.step()  # No round follows it.
    assert [raw(t) for t in plain.tensors()] == [raw(t) for t in trained.tensors()]
    assert [raw(m) for m in plain.momenta()] == [raw(m) for m in trained.momenta()]
    trained.optimizer.finish()


@check()
def state_that_does_not_fit_is_refused() -> None:
    trained = real(STRATEGIES["streaming"]())
    trained.step(SAVED_AT)
    state = trained.optimizer.state_dict()

    def changed(change: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        other = deepcopy(state)
        change(other["communication"])
        return other

    load = trained.optimizer.load_state_dict
    for lacking in ("parts", "own", "strategy", "steps", "rounds"):
        other = changed(lambda own, name=lacking: own.pop(name))
        raises(lambda o=other: load(o), "DiLoCo.load_state_dict: the state lacks", lacking)
    for change, *words in (
        (lambda own: own["parts"].pop(), "in 1 fragments", "same number of fragments"),
        (lambda own: own["parts"][1].pop("anchor"), "the state lacks anchor"),
        (lambda own: own["parts"][0]["anchor"].pop(), "the saved anchor has", "parameters need"),
        (
            lambda own: own["parts"][1].update(anchor=[torch.ones(3)]),
            "flat tensors of shapes [(3,)]",
            "same model",
        ),
    ):
        before = [raw(t) for t in trained.shared()]
        raises(lambda c=change: load(changed(c)), *words)
        assert before == [raw(t) for t in trained.shared()]
    load(state)
    trained.optimizer.finish()
    expect_equal_ranks(trained)


@check(min_size=2)
def state_is_refused_while_gradients_are_reduced() -> None:
    """Or a step after it would be local, with gradients that are under way."""
    trained = real(STRATEGIES["post"]())
    trained.step(4)
    state = deepcopy(trained.optimizer.state_dict())
    trained = real(STRATEGIES["post"](), prefix="loading.")
    trained.backward()
    words = "load_state_dict() was called after backward()", "'loading.", "call it after step()"
    raises(lambda: trained.optimizer.load_state_dict(state), *words)
    trained.optimizer.step()
    trained.optimizer.load_state_dict(state)
    trained.step(2)
    trained.optimizer.finish()
    assert trained.optimizer._distribution.runs[0].steps == 6
    expect_equal_ranks(trained)


@check()
def parameters_are_added_before_the_first_local_step() -> None:
    more = torch.nn.Parameter(torch.ones(2))
    trained = real(STRATEGIES["keep"]())
    trained.optimizer.add_param_group({"params": [("more", more)]})
    more.grad = torch.full((2,), float(md.rank()))
    trained.optimizer.step()
    late = {"params": [("late", torch.nn.Parameter(torch.ones(2)))]}
    raises(lambda: trained.optimizer.add_param_group(late), "add_param_group", "call finish()")
    trained.optimizer.finish()
    expect_near(more, torch.full((2,), 1 - 0.1 * (md.size() - 1) / 2), 1e-6, "the mean")
    assert len(set(md.allgather_object(raw(more)))) == 1


DIFFERENT: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "period": (lambda: md.LocalSGD(4), lambda: md.LocalSGD(8)),
    "strategy": (lambda: md.LocalSGD(4), lambda: md.SlowMo(4)),
    "none": (lambda: md.LocalSGD(4), lambda: None),
    "every 1": (lambda: None, lambda: md.LocalSGD(1)),
    "start": (lambda: md.PostLocalSGD(2, start=5), lambda: md.PostLocalSGD(2, start=6)),
    "momentum": (lambda: md.LocalSGD(4), lambda: md.LocalSGD(4, momentum="reset")),
    "outer": (lambda: md.DiLoCo(4), lambda: md.DiLoCo(4, outer=outer_adam)),
    "mix": (lambda: md.DiLoCo(4), lambda: md.DiLoCo(4, mix=0.5)),
}


@check(min_size=2, cases=[(kind,) for kind in DIFFERENT])
def ranks_with_different_strategies_are_told_both(kind: str) -> None:
    usual, other = DIFFERENT[kind]
    strategy = other() if md.rank() == last() else usual()
    trained = real(strategy)
    texts = [(s() or md.SynchronousGradients()).describe() for s in (usual, other)]
    assert texts[0] != texts[1]
    before = [raw(t) for t in trained.tensors()]
    for _ in range(2):  # A step that is tried again is checked again.
        expect_mismatch(
            trained.optimizer.step,
            "check before step 1 of the optimizer: communication differs between ranks:",
            f"  {others_text()}: {texts[0]}\n",
            f"  rank {last()}: {texts[1]}\n",
        )
    assert before == [raw(t) for t in trained.tensors()]


@check(min_size=2)
def parameters_that_differ_at_the_start_are_an_error() -> None:
    trained = real(STRATEGIES["keep"]())
    with torch.no_grad():
        trained.model[0].bias[1] += md.rank()
    expect_mismatch(
        trained.optimizer.step, "check before step 1 of the optimizer", "parameter '0.bias' differ"
    )
    with unchecked():
        trained = real(STRATEGIES["keep"]())
    trained.step(3)
    expect_equal_ranks(trained)
