"""Several strategies in one optimizer, in virtual time, against the same rules in float64 numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from refusals import expect_refusal, refusals

import mydist as md
from mydist.optim.strategies.simulation import SimulatedWorker, Simulation

SIZE, STEPS, RATE, MOMENTUM = 3, 11, 0.1, 0.9
SHAPES = {"emb.user": 2, "emb.item": 3, "fc": 4}
_random = np.random.default_rng(29)
START = {name: _random.normal(size=n) for name, n in SHAPES.items()}
CURVATURE = {name: _random.uniform(0.2, 2.0, size=(SIZE, n)) for name, n in SHAPES.items()}
NOISE = {name: _random.normal(size=(STEPS, SIZE, n)) for name, n in SHAPES.items()}


class Worker:
    """A model of three tensors, and its optimizer."""

    def __init__(self, worker: SimulatedWorker, mixture: Any, **options: Any) -> None:
        self.rank, self.taken = worker.rank, 0
        self.model = {n: torch.nn.Parameter(torch.tensor(start)) for n, start in START.items()}
        plain = torch.optim.SGD(list(self.model.items()), **{"lr": RATE, **options})
        self.optimizer = worker.optimizer(plain, mixture)

    def backward(self) -> None:
        for name, parameter in self.model.items():
            slope = CURVATURE[name][self.rank] * parameter.detach().numpy()
            parameter.grad = torch.tensor(slope + NOISE[name][self.taken, self.rank])
        self.taken += 1

    def step(self, count: int = 1) -> None:
        for _ in range(count):
            self.backward()
            self.optimizer.step()

    def flat(self) -> Any:
        return np.concatenate([parameter.detach().numpy() for parameter in self.model.values()])


def trained(mixture: Any, **options: Any) -> tuple[Any, Any]:
    """What each rank has after the steps, and after finish()."""

    def program(worker: SimulatedWorker) -> Any:
        one = Worker(worker, mixture, **options)
        one.step(STEPS)
        alone = one.flat()
        one.optimizer.finish()
        return alone, one.flat()

    alone, finished = zip(*Simulation(SIZE).run(program), strict=True)
    return np.array(alone), np.array(finished)


def by_hand(
    local: Callable[[str, int], bool],
    meets: Callable[[str, int], bool],
    momentum: float = MOMENTUM,
) -> tuple[Any, Any]:
    """The same: whether the gradient of a tensor stays local in a step, from 1, and whether the
    ranks average the tensor after it."""
    x = {name: np.tile(start, (SIZE, 1)) for name, start in START.items()}
    v = {name: np.zeros_like(value) for name, value in x.items()}
    for step in range(1, STEPS + 1):
        for name in x:
            g = CURVATURE[name] * x[name] + NOISE[name][step - 1]
            v[name] = momentum * v[name] + (g if local(name, step) else g.mean(0))
            x[name] = x[name] - RATE * v[name]
            if meets(name, step):
                x[name] = np.tile(x[name].mean(0), (SIZE, 1))
    finished = [np.tile(value.mean(0), (SIZE, 1)) for value in x.values()]
    return np.concatenate(list(x.values()), 1), np.concatenate(finished, 1)


def expect_same(got: tuple[Any, Any], wanted: tuple[Any, Any], bound: float = 1e-12) -> None:
    for mine, other in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=bound)


def test_local_steps_of_some_parameters_and_averaged_gradients_of_the_rest() -> None:
    mixture = {"emb.*": md.LocalSGD(4), "*": md.SynchronousGradients()}
    wanted = by_hand(
        lambda name, step: name != "fc", lambda name, step: name != "fc" and step % 4 == 0
    )
    got = trained(mixture, momentum=MOMENTUM)
    expect_same(got, wanted)
    assert (got[1] == got[1][0]).all() and not np.array_equal(*got), "finish() makes ranks equal"


def test_a_share_becomes_local_alone() -> None:
    mixture = {
        "emb.item": md.PostLocalSGD(3, start=5),
        "emb.*": md.LocalSGD(None),
        "*": md.SynchronousGradients(),
    }

    def local(name: str, step: int) -> bool:
        return name == "emb.user" or (name == "emb.item" and step > 5)

    wanted = by_hand(local, lambda name, step: name == "emb.item" and step in (8, 11))
    expect_same(trained(mixture, momentum=MOMENTUM), wanted)


def test_servers_that_wait_for_all_and_averaged_gradients_are_synchronous_training() -> None:
    served = md.AsynchronousGradients(md.ps.SGD(lr=RATE), md.ps.Sync())
    got = trained({"emb.*": served, "*": md.SynchronousGradients()})
    wanted = by_hand(lambda name, step: False, lambda name, step: False, momentum=0.0)
    expect_same(got, wanted, 3e-6)  # Tables are float32.
    assert (got[0] == got[0][0]).all() and (got[1] == got[1][0]).all(), "to the last bit"


REFUSED = 3  # A step.


@pytest.mark.parametrize("by_closure", [False, True])
def test_a_step_that_one_share_of_one_rank_refuses_is_taken_by_none(by_closure: bool) -> None:
    mixture = {
        "emb.*": md.AsynchronousGradients(md.ps.SGD(lr=RATE), md.ps.Sync()),
        "*": md.SynchronousGradients(),
    }

    def program(worker: SimulatedWorker) -> Any:
        one = Worker(worker, mixture)

        def refused() -> None:
            one.backward()
            if worker.rank == 1:
                one.model["emb.item"].grad[2] = float("nan")

        for step in range(STEPS):
            if step != REFUSED:
                one.step()
                continue
            before = one.flat()
            error = (
                r"step\(\) on rank 1: the gradient of 'emb.item' is nan at index \(2,\)\. No rank"
                if worker.rank == 1
                else r"step\(\) on rank 1: a gradient that servers would get is not finite"
            )
            with pytest.raises(ValueError, match=error):
                if by_closure:
                    one.optimizer.step(refused)
                else:
                    refused()
                    one.optimizer.step()
            assert (one.flat() == before).all()
            assert [run.steps for run in one.optimizer._distribution.runs] == [REFUSED] * 2
        return one.flat()

    got = np.array(Simulation(SIZE).run(program))
    x = {name: np.tile(start, (SIZE, 1)) for name, start in START.items()}
    for step in set(range(STEPS)) - {REFUSED}:
        for name in x:
            x[name] = x[name] - RATE * (CURVATURE[name] * x[name] + NOISE[name][step]).mean(0)
    np.testing.assert_allclose(got, np.concatenate(list(x.values()), 1), rtol=0, atol=3e-6)


def test_a_rank_whose_steps_are_all_local_refuses_alone_and_holds_no_other() -> None:
    mixture = {
        "emb.*": md.AsynchronousGradients(md.ps.SGD(lr=RATE), md.ps.Sync()),
        "*": md.LocalSGD(None),
    }

    def program(worker: SimulatedWorker) -> int:
        one = Worker(worker, mixture)
        for step in range(STEPS):
            if worker.rank != 2 or step % 4:
                one.step()
                continue
            one.backward()
            one.model["emb.user"].grad[0] = float("inf")
            before = one.flat()
            with pytest.raises(ValueError, match="on rank 2: .* This rank has applied nothing"):
                one.optimizer.step()
            assert (one.flat() == before).all()
        return int(one.optimizer._distribution.runs[0].steps)

    assert Simulation(SIZE).run(program) == [STEPS, STEPS, STEPS - 3]


def test_one_pattern_for_all_is_the_plain_strategy() -> None:
    wanted = trained(md.LocalSGD(4), momentum=MOMENTUM)
    for pattern in ("*", "[ef]*"):
        for mine, other in zip(
            trained({pattern: md.LocalSGD(4)}, momentum=MOMENTUM), wanted, strict=True
        ):
            assert (mine == other).all()


def test_the_bits_of_a_share_do_not_depend_on_the_others() -> None:
    alone, _ = trained(md.DiLoCo(3), momentum=MOMENTUM)
    mixed, _ = trained(
        {"fc": md.DiLoCo(3), "emb.u*": md.BlockMomentum(2), "*": md.SynchronousGradients()},
        momentum=MOMENTUM,
    )
    assert (alone[:, 5:] == mixed[:, 5:]).all() and not (alone[:, :5] == mixed[:, :5]).any()


@dataclass(eq=False)
class Untouched(md.Strategy):
    """Takes no step; keeps what it has seen of the gradients."""

    takes_inner_steps: ClassVar[bool] = False

    def after_step(self, step: int) -> None:
        self.seen = self.parts[0].gradients()


@pytest.mark.parametrize("by_closure", [False, True])
@pytest.mark.parametrize("rest", [md.LocalSGD(8), md.SynchronousGradients()])
def test_the_wrapped_optimizer_leaves_a_share_alone(rest: md.Strategy, by_closure: bool) -> None:
    """Whatever its momentum and decay."""

    def program(worker: SimulatedWorker) -> None:
        options = {"momentum": MOMENTUM, "weight_decay": 0.1}
        one = Worker(worker, {"emb.*": Untouched(), "*": rest}, **options)
        plain = Worker(worker, md.SynchronousGradients(), **options)
        for _ in range(3):
            plain.step()

            def closure() -> float:
                assert all(p.grad is not None for p in one.model.values()) or one.taken == 0
                one.backward()
                return 7.0

            if by_closure:
                assert one.optimizer.step(closure) == 7.0
            else:
                one.step()
            for name in ("emb.user", "emb.item"):
                parameter = one.model[name]
                assert np.array_equal(parameter.detach().numpy(), START[name])
                assert parameter not in one.optimizer.state
                assert parameter.grad is not None, "it comes back"
            seen = one.optimizer._distribution.runs[0].strategy.seen[0]
            assert torch.equal(seen, torch.cat([one.model[n].grad for n in SHAPES if "emb" in n]))
            assert torch.equal(one.model["fc"], plain.model["fc"])

    Simulation(1).run(program)


def test_a_rank_whose_steps_are_all_local_skips_alone_and_unscales_what_it_pushes() -> None:
    """Also where the wrapped optimizer could unscale the gradients of the other share."""

    def program(worker: SimulatedWorker) -> list[list[float]]:
        emb, fc = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
        served = md.AsynchronousGradients(md.ps.SGD(lr=1.0))
        inner = torch.optim.SGD([("emb", emb), ("fc", fc)], lr=1.0, fused=True)
        optimizer = worker.optimizer(inner, {"emb": served, "*": md.LocalSGD(None)})
        path = []
        optimizer.grad_scale = torch.tensor(8.0)
        for has_overflow in (0.0, 1.0, 0.0):
            emb.grad, fc.grad = torch.full((1,), 8.0), torch.full((1,), 16.0)
            optimizer.found_inf = torch.tensor(has_overflow)
            optimizer.step()
            path.append([emb.item(), fc.item()])
        assert [run.steps for run in optimizer._distribution.runs] == [3, 3]
        return path

    assert Simulation(1).run(program)[0] == [[-1, -2], [-1, -2], [-2, -4]]


def test_a_rate_and_settings_are_those_of_the_share() -> None:
    """And a scheduler changes the rule's rate by the groups of the share alone."""

    def program(worker: SimulatedWorker) -> list[float]:
        emb, fc = (torch.nn.Parameter(torch.zeros(())) for _ in range(2))
        groups = [
            {"params": [("fc", fc)], "lr": 0.5, "momentum": 0.9},
            {"params": [("emb", emb)], "lr": 1.0},
        ]
        served = md.AsynchronousGradients(md.ps.SGD(lr=1.0))
        inner = torch.optim.SGD(groups)
        optimizer = worker.optimizer(inner, {"emb": served, "*": md.SynchronousGradients()})
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.25)
        for _ in range(2):
            emb.grad = fc.grad = torch.ones(())
            optimizer.step()
            scheduler.step()
        return [emb.item(), fc.item()]

    assert Simulation(1).run(program)[0] == pytest.approx([-1.25, -0.5 - 0.125 * 1.9])


def test_buffers_follow_their_names() -> None:
    def program(worker: SimulatedWorker) -> list[int]:
        model = torch.nn.Sequential(torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(3))
        buffers = [*model.named_buffers(), ("other", torch.zeros(7))]
        optimizer = worker.optimizer(
            torch.optim.SGD(model.named_parameters(), lr=RATE),
            {"1.*": md.LocalSGD(2), "0.*": md.LocalSGD(4)},
            buffers,
        )
        runs = optimizer._distribution.runs
        return [sum(t.numel() for t in run.job.buffers.tensors) for run in runs]

    assert Simulation(1).run(program) == [[3 + 3 + 1, 2 + 2 + 1 + 7]]


def on_one(mixture: Any, body: Callable[[Worker], Any]) -> Any:
    return Simulation(1).run(lambda worker: body(Worker(worker, mixture)))[0]


def test_parameters_are_added_to_the_share_of_their_name() -> None:
    def body(one: Worker) -> None:
        new = {name: torch.nn.Parameter(torch.ones(2)) for name in ("emb.new", "fc.new", "bad")}
        one.step()

        def add(name: str) -> None:
            one.optimizer.add_param_group({"params": [(name, new[name])]})

        with pytest.raises(ValueError, match="the strategy has anchors for the present"):
            add("emb.new")
        with pytest.raises(ValueError, match="no pattern takes the parameter 'bad'"):
            add("bad")
        assert len(one.optimizer.param_groups) == 1
        add("fc.new")
        new["fc.new"].grad = torch.ones(2)
        one.step()
        assert new["fc.new"].tolist() == pytest.approx([1 - RATE] * 2)
        one.optimizer.finish()

    on_one({"emb.*": md.LocalSGD(2), "fc*": md.SynchronousGradients()}, body)


MIXTURE = {"emb.*": md.LocalSGD(4), "*": md.SynchronousGradients()}
OTHERS: dict[str, Any] = {
    "one strategy": md.LocalSGD(4),
    "other patterns": {"emb.u*": md.LocalSGD(4), "*": md.SynchronousGradients()},
    "another order": {"fc": md.SynchronousGradients(), "*": md.LocalSGD(4)},
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_other_patterns_is_that_of_another_strategy(name: str) -> None:
    def state(one: Worker) -> Any:
        one.step(6)
        return one.optimizer.state_dict(), one.optimizer.rank_state_dict()

    for saver, loader in ((MIXTURE, OTHERS[name]), (OTHERS[name], MIXTURE)):
        shared, own = on_one(saver, state)

        def body(one: Worker, shared: Any = shared, own: Any = own) -> None:
            with pytest.warns(UserWarning, match="was saved by .* and is loaded into") as said:
                one.optimizer.load_state_dict(shared)
            assert said[0].filename == __file__
            assert "{loader}" not in str(said[0].message)
            assert one.optimizer.load_rank_state_dict(own), "steps of the ranks are lost"
            assert all(run.steps == 6 for run in one.optimizer._distribution.runs)
            for key, parameter in one.model.items():
                assert np.array_equal(parameter.detach().numpy(), START[key]), key
            one.step(2)
            one.optimizer.finish()

        on_one(loader, body)


def test_one_share_of_another_strategy_drops_the_steps_of_all() -> None:
    def state(one: Worker) -> Any:
        one.step(6)
        return one.optimizer.state_dict(), one.optimizer.rank_state_dict()

    shared, own = on_one({"emb.*": md.LocalSGD(4), "*": md.LocalSGD(4)}, state)

    def body(one: Worker) -> None:
        with pytest.warns(UserWarning, match="saved by LocalSGD.* is loaded into SlowMo") as said:
            one.optimizer.load_state_dict(shared)
        assert said[0].filename == __file__
        assert one.optimizer.load_rank_state_dict(own)
        anchor = one.optimizer._distribution.runs[1].job.parts[0].anchor[0]
        assert torch.equal(one.model["fc"], anchor), "its own round is known"

    on_one({"emb.*": md.SlowMo(4), "*": md.LocalSGD(4)}, body)


def test_a_round_that_failed_takes_all_shares_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: Any, **__: Any) -> None:
        raise md.MydistError("lost")

    def body(one: Worker) -> None:
        one.step(2)
        agreed = np.concatenate([START["emb.user"], START["emb.item"], one.flat()[5:]])
        runs = one.optimizer._distribution.runs
        with monkeypatch.context() as broken:
            broken.setattr(runs[1].job, "average", lost)
            one.step()
            with pytest.raises(md.MydistError):
                one.step()
        assert (one.flat() == agreed).all() and [run.steps for run in runs] == [4, 4]
        one.step(2)
        one.optimizer.finish()

    on_one({"emb.*": md.LocalSGD(8), "*": md.LocalSGD(2)}, body)


WRONG = refusals(
    """
on_one({}, print)
    ValueError: DistributedOptimizer: communication is an empty dict; add an entry, under the
on_one({1: md.LocalSGD()}, print)
    TypeError: DistributedOptimizer: communication: a key is 1 (int), expected a pattern of
on_one({'*': 'local'}, print)
    TypeError: DistributedOptimizer: communication['*'] is 'local' (str), expected a strategy such
on_one({'*': md.LocalSGD}, print)
    TypeError: DistributedOptimizer: communication['*'] is …; write LocalSGD(…)
on_one({'*': None}, print)
    TypeError: DistributedOptimizer: communication['*'] is None
on_one({'emb.*': md.LocalSGD()}, print)
    ValueError: DistributedOptimizer: communication: no pattern takes the parameter 'fc'; add an
on_one({'*': md.LocalSGD(), 'emb.*': md.SlowMo(2)}, print)
    ValueError: DistributedOptimizer: communication: the pattern 'emb.*' takes no parameter
"""
)


@pytest.mark.parametrize(("call", "error"), WRONG)
def test_wrong_mixtures(call: str, error: str) -> None:
    expect_refusal(call, error, globals())
