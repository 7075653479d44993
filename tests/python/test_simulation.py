"""The simulated job: its virtual clock, its meetings, and how it ends."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator

import pytest
import torch
from refusals import expect_refusal, refusals

import mydist as md
from mydist.optim.strategies.simulation import SimulatedWorker, Simulation


@pytest.fixture(autouse=True)
def _leaves_no_thread() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    assert set(threading.enumerate()) == before, "every run ends its threads"


class Trainee:
    """A parameter on a simulated worker; each step takes `worker.rank + 1` away from it."""

    def __init__(self, worker: SimulatedWorker, strategy: md.Strategy) -> None:
        self.worker = worker
        self.weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
        self.optimizer = worker.optimizer(torch.optim.SGD([self.weight], lr=1.0), strategy)

    def step(self) -> float:
        """Steps once. How long the worker has waited for others, in virtual seconds."""
        seconds, own = self.worker.seconds, SPEEDS[self.worker.rank]
        self.weight.grad = torch.full_like(self.weight, self.worker.rank + 1)
        self.optimizer.step()
        return self.worker.seconds - seconds - own


SPEEDS = [1.0, 4.0, 2.0]  # Seconds of a step, by rank.


def simulation(round_seconds: float = 0.0) -> Simulation:
    return Simulation(3, lambda rank, step: SPEEDS[rank], round_seconds)


def test_a_round_ends_for_all_when_the_slowest_has_come() -> None:
    def train(worker: SimulatedWorker) -> list[float]:
        trainee = Trainee(worker, md.LocalSGD(every=2))
        return [trainee.step() for _ in range(5)]

    job = simulation(round_seconds=10.0)
    assert job.run(train) == [
        [0.0, 16.0, 0.0, 16.0, 0.0],
        [0.0, 10.0, 0.0, 10.0, 0.0],
        [0.0, 14.0, 0.0, 14.0, 0.0],
    ], "rank 1 waits for no rank, only for the round itself"
    assert job.seconds == 2 * (2 * 4.0 + 10.0) + 4.0, "the slowest rank ends last"


def test_synchronous_gradients_wait_in_every_step() -> None:
    def train(worker: SimulatedWorker) -> list[float]:
        trainee = Trainee(worker, md.SynchronousGradients())
        waits = [trainee.step() for _ in range(3)]
        assert trainee.weight.item() == -3 * 2.0
        return waits

    # The clock goes on after the step, so a rank waits for the previous step of the others.
    assert simulation().run(train) == [[0.0, 3.0, 3.0], [0.0, 0.0, 0.0], [0.0, 2.0, 2.0]]


def test_a_delay_hides_the_round() -> None:
    def train(worker: SimulatedWorker) -> list[float]:
        trainee = Trainee(worker, md.DiLoCo(every=4, delay=2))
        return [trainee.step() for _ in range(8)]

    # Rank 1 has made half of the steps at 8.0, so the means are there at 10.0 and 26.0.
    assert simulation(round_seconds=2.0).run(train) == [
        [0.0, 0.0, 0.0, 6.0, 0.0, 0.0, 0.0, 12.0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0, 8.0],
    ]


def test_step_seconds_get_the_rank_and_its_own_count_of_steps() -> None:
    asked: list[tuple[int, int]] = []

    def step_seconds(rank: int, step: int) -> float:
        asked.append((rank, step))
        return 8.0 if (rank, step) == (1, 2) else 1.0

    def train(worker: SimulatedWorker) -> float:
        trainee = Trainee(worker, md.LocalSGD(every=None))
        for _ in range(worker.rank + 2):
            trainee.step()
        return worker.seconds

    job = Simulation(2, step_seconds)
    assert job.run(train) == [2.0, 10.0]
    assert job.seconds == 10.0
    assert sorted(asked) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]


def test_finish_waits_for_all_and_gives_all_the_same_model() -> None:
    def train(worker: SimulatedWorker) -> tuple[float, float]:
        trainee = Trainee(worker, md.LocalSGD(every=None))
        trainee.step()
        trainee.optimizer.finish()
        return worker.seconds, trainee.weight.item()

    # Two meetings: the ranks tell how far they are, then they average.
    assert simulation(10.0).run(train) == [(4.0 + 2 * 10.0, -2.0)] * 3


def test_a_worker_that_ends_early_no_longer_counts() -> None:
    def train(worker: SimulatedWorker) -> list[float]:
        trainee, seen = Trainee(worker, md.LocalSGD(every=2)), []
        for _ in range(2 if worker.rank == 1 else 6):
            trainee.step()
            seen.append(trainee.weight.item())
        return seen

    # One round of all three, then rounds of ranks 0 and 2, which take 1 and 3 away in a step.
    assert simulation().run(train) == [
        [-1, -4, -5, -8, -9, -12],
        [-2, -4],
        [-3, -4, -7, -8, -11, -12],
    ]


def test_a_worker_that_ends_early_counts_with_zeros_where_gradients_are_averaged() -> None:
    def train(worker: SimulatedWorker) -> float:
        trainee = Trainee(worker, md.SynchronousGradients())
        for _ in range(1 if worker.rank == 1 else 2):
            trainee.step()
        return trainee.weight.item()

    after_join = -(1 + 2 + 3) / 3 - (1 + 3) / 3
    assert simulation().run(train) == pytest.approx([after_join, -2.0, after_join])


def test_a_worker_that_ends_before_the_others_meet_lets_them_go_on() -> None:
    def train(worker: SimulatedWorker) -> float:
        trainee = Trainee(worker, md.LocalSGD(every=2))
        trainee.step()
        if worker.rank != 1:
            trainee.step()
        return trainee.weight.item()

    assert simulation().run(train) == [-4.0, -2.0, -4.0]


# Ranks run in their order, and wait in the second round; those that have not run are in the first.
@pytest.mark.parametrize(("rank", "left"), [(0, [0, 0]), (1, [0, -4]), (2, [-4, -4])])
def test_an_exception_of_a_worker_ends_the_run(rank: int, left: list[float]) -> None:
    anchors: list[float] = []

    def train(worker: SimulatedWorker) -> None:
        trainee = Trainee(worker, md.LocalSGD(every=2))
        try:
            for step in range(100):
                if (worker.rank, step) == (rank, 3):
                    raise ArithmeticError("as ill luck would have it")
                trainee.step()
        finally:
            if worker.rank != rank:
                anchors.append(trainee.weight.item())

    with pytest.raises(ArithmeticError, match="as ill luck would have it"):
        simulation().run(train)
    assert anchors == left, "the others are back at the model of their last round"


def test_an_exception_ends_workers_that_never_meet() -> None:
    def train(worker: SimulatedWorker) -> None:
        trainee = Trainee(worker, md.LocalSGD(every=None))
        while True:
            trainee.step()
            if worker.rank == 0 and worker.seconds == 5:
                raise ArithmeticError

    with pytest.raises(ArithmeticError):
        simulation().run(train)


def test_ctrl_c_ends_the_run() -> None:
    def train(worker: SimulatedWorker) -> None:
        trainee = Trainee(worker, md.LocalSGD(every=2))
        while True:
            trainee.step()
            if worker.seconds == 20.0:
                assert (main := threading.main_thread().ident) is not None
                signal.pthread_kill(main, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        simulation().run(train)


def test_workers_in_different_calls() -> None:
    def train(worker: SimulatedWorker) -> None:
        trainee = Trainee(worker, md.LocalSGD(every=2))
        trainee.step()
        if worker.rank == 2:
            trainee.optimizer.finish()
        trainee.step()

    calls = r"simulated workers wait in different calls: \['gather', 'round'\]"
    with pytest.raises(RuntimeError, match=calls):
        simulation().run(train)


def test_values_that_do_not_fit() -> None:
    def train(worker: SimulatedWorker) -> None:
        weights = torch.zeros(1 + worker.rank % 2, requires_grad=True)
        optimizer = worker.optimizer(torch.optim.SGD([weights], lr=1.0), md.LocalSGD(every=2))
        for _ in range(1 if worker.rank == 2 else 2):
            optimizer.step()

    # Rank 2 is the last to run, and ends before the others meet.
    with pytest.raises(RuntimeError, match="shape"):
        Simulation(3).run(train)


@pytest.fixture
def _switches_often() -> Iterator[None]:
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_switches_often")
def test_a_run_repeats_to_the_last_bit() -> None:
    def train(worker: SimulatedWorker) -> tuple[float, bytes]:
        noise = torch.Generator().manual_seed(worker.rank)
        weights = torch.ones(100, requires_grad=True)
        optimizer = worker.optimizer(torch.optim.Adam([weights]), md.DiLoCo(every=4, delay=1))
        for _ in range(17):
            weights.grad = torch.randn(100, generator=noise) * weights.detach()
            optimizer.step()
        optimizer.finish()
        return worker.seconds, weights.detach().numpy().tobytes()

    def step_seconds(rank: int, step: int) -> float:
        return 1 + (5 * rank + 3 * step) % 7

    runs = [Simulation(8, step_seconds, 0.5).run(train) for _ in range(5)]
    assert runs.count(runs[0]) == 5
    assert len(set(runs[0])) == 1, "all ranks end with the same model"


def test_one_worker_runs_at_a_time_and_results_come_by_rank() -> None:
    running = 0

    def train(worker: SimulatedWorker) -> int:
        nonlocal running
        running += 1
        assert running == 1
        # A worker that does not wait is not interrupted, whatever its clock says.
        for _ in range(50):
            worker.step_done()
        running -= 1
        assert worker.meet("count", 1, sum) == 3
        return worker.rank * worker.size

    job = simulation()
    assert job.run(train) == [0, 3, 6]
    assert job.run(train) == [0, 3, 6], "a simulation may run again"
    assert job.seconds == 50 * 4.0, "from 0"


WRONG = refusals(
    """
Simulation(0)
    ValueError: Simulation: size is 0, expected an int of at least 1
Simulation(2.0)
    ValueError: Simulation: size is 2.0, expected an int of at least 1
Simulation(2, round_seconds=-1)
    ValueError: Simulation: round_seconds is -1, expected a number of at least 0
Simulation(2, round_seconds=float('nan'))
    ValueError: Simulation: round_seconds is nan, expected a number of at least 0
"""
)


@pytest.mark.parametrize(("call", "error"), WRONG)
def test_wrong_settings(call: str, error: str) -> None:
    expect_refusal(call, error, globals())


def test_one_worker_meets_itself() -> None:
    def train(worker: SimulatedWorker) -> float:
        trainee = Trainee(worker, md.LocalSGD(every=2))
        for _ in range(3):
            trainee.step()
        trainee.optimizer.finish()
        return trainee.weight.item()

    assert Simulation(1).run(train) == [-3.0]
