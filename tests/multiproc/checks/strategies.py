"""Strategies on real ranks: rounds as in the simulation and in numpy, finish(), join(), sets."""

from __future__ import annotations

import torch

import mydist as md
from multiproc.checks.models import raises
from multiproc.checks.optimizer_sets import halves
from multiproc.checks.strategy_models import (
    BY_NAME,
    STRATEGIES,
    Trained,
    expect_all_near,
    expect_equal_ranks,
    mean,
    plain_steps,
    real,
    simulated,
    snapshot,
)
from multiproc.reference import expect_near, raw
from multiproc.registry import check

FIRST = 3  # The step of the first round of most STRATEGIES.


def everyone() -> list[int]:
    return list(range(md.size()))


@check(
    cases=[
        (dtype, name) for dtype in (torch.float32, torch.float64) for name in ("default", "local")
    ]
)
def the_default_and_every_1_give_the_bits_of_averaged_gradients(
    dtype: torch.dtype, name: str
) -> None:
    strategy = md.SynchronousGradients() if name == "default" else md.LocalSGD(1)
    plain, chosen = real(None, dtype), real(strategy, dtype, prefix=f"{name}.")
    start = raw(plain.model[0].weight)
    for step in range(5):
        plain.step()
        chosen.step()
        for mine, wanted in zip(chosen.tensors(), plain.tensors(), strict=True):
            assert raw(mine) == raw(wanted), f"step {step}"
    assert raw(chosen.model[0].weight) != start


@check(cases=[(torch.float32, 1e-5), (torch.float64, 1e-12)])
def a_round_after_each_step_is_averaged_gradients(dtype: torch.dtype, bound: float) -> None:
    plain = real(None, dtype)
    general = real(md.BlockMomentum(1, momentum=0.0), dtype, prefix="general.")
    for _ in range(10):
        plain.step()
        general.step()
    assert general.optimizer._distribution.runs[0].job.rounds == 10
    expect_all_near(
        list(general.model.parameters()), list(plain.model.parameters()), bound, "parameters"
    )


def trace(trained: Trained) -> list[list[torch.Tensor]]:
    """What there is after each of some steps, and after finish() in the middle of a round."""
    seen = []
    for count in (8, 4):
        for _ in range(count):
            trained.step()
            seen.append(snapshot(trained))
        trained.optimizer.finish()
        seen.append(snapshot(trained))
    return seen


@check(min_size=2, cases=BY_NAME)
def rounds_are_those_of_the_simulation(name: str) -> None:
    rounds = md.stats()["strategy_rounds"]
    got = trace(real(STRATEGIES[name]()))
    rounds = md.stats()["strategy_rounds"] - rounds
    wanted = simulated(everyone(), STRATEGIES[name](), trace)[md.rank()]
    for number, (mine, other) in enumerate(zip(got, wanted, strict=True)):
        expect_all_near(mine, other, 1e-10, f"snapshot {number}")
    least = {"once": 2, "streaming": 2 + 1 + 2, "mixture": 3 * 5}.get(name, 2 + 1 + 1)
    assert least <= rounds <= least + 2, f"{rounds} rounds, expected {least} or up to 2 more"


@check(cases=[(name,) for name in ("keep", "reset", "average", "weighted", "elastic")])
def the_first_round_is_the_mean_of_what_each_rank_has_alone(name: str) -> None:
    trained = real(STRATEGIES[name]())
    trained.step(FIRST)
    alone = [plain_steps(rank, FIRST) for rank in everyone()]
    mine, start = alone[md.rank()], plain_steps(0, 0)
    samples = [float(3 + 2 * rank) for rank in everyone()] if name == "weighted" else None
    for index, parameter in enumerate(trained.model.parameters()):
        of_ranks = [list(other.model.parameters())[index] for other in alone]
        wanted = mean(of_ranks, samples)
        if name == "elastic":
            centre, own = list(start.model.parameters())[index], of_ranks[md.rank()]
            wanted = own - 0.9 / md.size() * (own - centre)
        expect_near(parameter, wanted, 1e-12, f"parameter {index}")
    for index, buffer in enumerate(trained.model.buffers()):
        of_ranks = [list(other.model.buffers())[index] for other in alone]
        wanted = of_ranks[0]  # Counters.
        if name == "elastic":
            wanted = of_ranks[md.rank()]
        elif buffer.is_floating_point():
            wanted = mean(of_ranks, samples)
        expect_near(buffer, wanted, 1e-12, f"buffer {index}")
    for index, momentum in enumerate(trained.momenta()):
        wanted = mine.momenta()[index]
        if name == "reset":
            wanted = torch.zeros_like(wanted)
        elif name == "average":
            wanted = mean([other.momenta()[index] for other in alone])
        expect_near(momentum, wanted, 1e-12, f"momentum {index}")
    trained.optimizer.finish()
    expect_equal_ranks(trained)


@check(min_size=2)
def momenta_are_averaged_with_a_rank_that_has_none() -> None:
    trained = real(STRATEGIES["average"]())
    has_none = md.rank() == md.size() - 1
    if has_none:
        for _ in range(FIRST):  # As after overflows.
            trained.optimizer.step()
        assert not trained.optimizer.state
    else:
        trained.step(FIRST)
        alone = [plain_steps(rank, FIRST) for rank in everyone()[:-1]]
        for index, momentum in enumerate(trained.momenta()):
            of_ranks = [other.momenta()[index] for other in alone]
            wanted = mean([*of_ranks, torch.zeros_like(momentum)])
            expect_near(momentum, wanted, 1e-12, f"momentum {index}")
    trained.step(FIRST)
    trained.optimizer.finish()
    expect_equal_ranks(trained)
    assert len(set(md.allgather_object([raw(m) for m in trained.momenta()][0]))) == 1


@check(min_size=2, cases=[("of floats",), ("of counters",)])
def elastic_ranks_keep_their_buffers_until_they_finish(kind: str) -> None:
    trained = real(STRATEGIES["elastic"]())
    if kind == "of counters":
        trained.model[1].num_batches_tracked += 10 * md.rank()
    trained.step(2 * FIRST)
    assert len(set(md.allgather_object([raw(b) for b in trained.model.buffers()][0]))) == md.size()
    own = [b.clone() for b in trained.model.buffers()]
    of_ranks = md.allgather_object(own)
    centre = [t.clone() for t in trained.shared()]
    trained.optimizer.finish()
    for index, buffer in enumerate(trained.model.buffers()):
        values = [other[index] for other in of_ranks]
        expect_near(
            buffer, mean(values) if buffer.is_floating_point() else values[0], 1e-12, str(index)
        )
    for mine, wanted in zip(trained.shared(), centre, strict=True):
        assert torch.equal(mine, wanted)
    expect_equal_ranks(trained)


@check(cases=BY_NAME)
def finish_gives_all_ranks_the_same_model_and_twice_the_same(name: str) -> None:
    trained = real(STRATEGIES[name]())
    trained.optimizer.finish()
    for count in (1, 3, 4, 5):
        trained.step(count)
        trained.optimizer.finish()
        expect_equal_ranks(trained, f"finish() after {count} steps")
        before = [raw(t) for t in [*trained.tensors(), *trained.shared()]]
        rounds = md.stats()["strategy_rounds"]
        trained.optimizer.finish()
        assert before == [raw(t) for t in [*trained.tensors(), *trained.shared()]]
        if not trained.shared():
            continue  # Then it averages the buffers once more, and there are no anchors.
        assert md.stats()["strategy_rounds"] == rounds
        trained.expect_at_anchors()


@check(cases=[(name,) for name in ("keep", "weighted", "once", "block", "slow")])
def finish_in_a_round_gives_the_mean(name: str) -> None:
    trained = real(STRATEGIES[name]())
    trained.step(FIRST + 2)
    of_ranks = md.allgather_object([p.detach().clone() for p in trained.model.parameters()])
    in_round = 5 if name == "once" else 2
    samples = [float(in_round * (3 + 2 * rank)) for rank in everyone()]
    trained.optimizer.finish()
    for index, parameter in enumerate(trained.model.parameters()):
        weights = samples if name == "weighted" else None
        wanted = mean([other[index] for other in of_ranks], weights)
        expect_near(parameter, wanted, 1e-12, f"parameter {index}")


JOINING = (
    "keep",
    "average",
    "weighted",
    "post",
    "block",
    "nesterov",
    "slow",
    "diloco",
    "outer",
)


@check(min_size=2, cases=[(name, early) for name in JOINING for early in ("rank 0", "last rank")])
def a_rank_that_joins_before_its_first_round_does_not_count(name: str, early: str) -> None:
    """The others train as if they were alone, and it gets what they have."""
    gone = 0 if early == "rank 0" else md.size() - 1
    others = [rank for rank in everyone() if rank != gone]
    strategy = STRATEGIES[name]()
    if name == "post":
        strategy = md.PostLocalSGD(3, start=0)  # Gradients count the rank that has joined.
    trained = real(strategy)
    trained.step(2 if md.rank() == gone else 7)
    md.join()
    raises(trained.optimizer.step, "step() follows join()", "finish() after join()")
    trained.optimizer.finish()
    expect_equal_ranks(trained, "after join()")

    def alone(other: Trained) -> list[torch.Tensor]:
        other.step(7)
        other.optimizer.finish()
        return snapshot(other)

    wanted = simulated(others, strategy, alone)[0]
    expect_all_near(snapshot(trained), wanted, 1e-10, "after join()")
    trained.step(4)  # Training goes on, in the same rounds on all ranks.
    trained.optimizer.finish()
    expect_equal_ranks(trained, "training after join()")


@check(min_size=2, cases=[(name, order) for name in STRATEGIES for order in ("rising", "falling")])
def ranks_may_make_any_numbers_of_steps(name: str, order: str) -> None:
    trained = real(STRATEGIES[name]())
    for _ in range(2):
        trained.step(2 + 2 * (md.rank() if order == "rising" else md.size() - md.rank()))
        md.join()
        trained.optimizer.finish()
        expect_equal_ranks(trained, "after join()")
        assert len(set(md.allgather_object(trained.optimizer._distribution.runs[0].steps))) == 1


WITHOUT_A_STEP = ("none", "keep", "average", "weighted", "post", "nesterov", "streaming", "elastic")


@check(min_size=2, cases=[(name,) for name in WITHOUT_A_STEP])
def a_rank_that_joins_before_its_first_step_goes_on_later(name: str) -> None:
    trained = real(None if name == "none" else STRATEGIES[name]())
    if md.rank() > 0:
        trained.step(FIRST + 1)
    md.join()
    trained.optimizer.finish()
    expect_equal_ranks(trained)
    trained.step(FIRST + 1)
    trained.optimizer.finish()
    expect_equal_ranks(trained)
    assert len(set(md.allgather_object(trained.optimizer._distribution.runs[0].steps))) == 1


@check(min_size=2)
def finish_after_join_helps_synchronous_ranks_as_well() -> None:
    trained = real(None)
    trained.step(2 + md.rank())
    md.join()
    trained.optimizer.finish()
    everyone_has = md.allgather_object([raw(t) for t in [*trained.tensors(), *trained.momenta()]])
    assert all(other == everyone_has[0] for other in everyone_has)


@check(min_size=2)
def a_post_local_rank_finishes_after_join_before_it_switches() -> None:
    """Or the ranks would switch after different numbers of steps."""
    trained = real(md.PostLocalSGD(2, start=6))
    trained.step(2 + md.rank())
    md.join()
    raises(trained.optimizer.step, "step() follows join()", "finish() after join()")
    trained.optimizer.finish()
    trained.step(6)
    assert trained.optimizer._distribution.runs[0].has_begun
    trained.optimizer.finish()
    expect_equal_ranks(trained)


@check(min_size=2)
def each_set_has_rounds_of_its_own() -> None:
    with halves() as own:
        for name in ("keep", "streaming", "elastic", "mixture"):
            trained = real(STRATEGIES[name](), process_set=own)
            count = 4 + 3 * (md.rank() % 2)
            trained.step(count)
            trained.optimizer.finish()
            expect_equal_ranks(trained, "a set", own)

            def alone(other: Trained, count: int = count) -> list[torch.Tensor]:
                other.step(count)
                other.optimizer.finish()
                return snapshot(other)

            wanted = simulated(own.ranks, STRATEGIES[name](), alone)[0]
            expect_all_near(snapshot(trained), wanted, 1e-10, f"a set with {name}")
        md.barrier()


@check(min_size=2)
def a_rank_outside_of_the_set_is_refused() -> None:
    first = md.add_process_set([0])
    if md.rank() == 0:
        trained = real(md.LocalSGD(2), process_set=first)
        trained.step(3)
        trained.optimizer.finish()
    else:
        raises(
            lambda: real(md.LocalSGD(2), process_set=first),
            f"rank {md.rank()} is not in ProcessSet",
        )
    md.remove_process_set(first)


@check(min_size=2)
def several_optimizers_have_rounds_of_their_own() -> None:
    """As of a GAN, whose parameters have the same names; with means under way at once."""
    names = ("keep", "streaming", "streaming")
    several = [real(STRATEGIES[name]()) for name in names]
    for _ in range(8):
        for trained in several:
            trained.step()
    for trained in several:
        trained.optimizer.finish()

    def alone(other: Trained) -> list[torch.Tensor]:
        other.step(8)
        other.optimizer.finish()
        return snapshot(other)

    for name, trained in zip(names, several, strict=True):
        wanted = simulated(everyone(), STRATEGIES[name](), alone)[0]
        expect_all_near(snapshot(trained), wanted, 1e-10, name)


@check(min_size=2)
def post_local_switches_on_all_ranks_at_once() -> None:
    """With bits of averaged gradients before."""
    plain, trained = real(None), real(md.PostLocalSGD(3, start=4), prefix="post.")
    for step in range(10):
        plain.step()
        trained.step()
        same = [
            raw(a) == raw(b)
            for a, b in zip(trained.model.parameters(), plain.model.parameters(), strict=True)
        ]
        assert all(same) == (step < 4), (step, same)
        equal = len(set(md.allgather_object(raw(trained.model[0].weight)))) == 1
        # Steps 0 to 3 are synchronous; a round follows steps 6 and 9.
        assert equal == (step < 4 or step in (6, 9)), step
