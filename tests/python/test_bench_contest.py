"""The contest in a job of one rank: who is called when, and that no result goes unchecked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from mydist.bench.contest import Plan, Stopwatch, measure, run_size
from mydist.bench.implementations import Call, Falsified
from mydist.bench.problem import Problem, WrongResult
from mydist.bench.results import Measured

pytestmark = pytest.mark.usefixtures("job")

LARGE = 128 << 10


class Recorded:
    """Right on one rank, where allreduce changes nothing."""

    def __init__(
        self, name: str, log: list[str], wrong_at: int | None = None, settles_after: int = 0
    ) -> None:
        self.name, self._log, self._wrong_at, self._calls = name, log, wrong_at, 0
        self._settles_after = settles_after

    def prepare(self, problem: Problem) -> Call:
        self._log.append(f"{self.name}:{problem.shape.size_bytes}")

        def call() -> torch.Tensor:
            if self._calls == self._wrong_at:
                problem.input[0] += 1
            self._calls += 1
            return problem.input

        return call

    def barrier(self) -> None:
        pass

    def await_others(self) -> None:
        pass

    def is_settled(self) -> bool:
        return self.calls >= self._settles_after

    @property
    def calls(self) -> int:
        return self._calls


class RightWhenAllAreDone(Recorded):
    def prepare(self, problem: Problem) -> Call:
        self._problem = problem
        return lambda: problem.input.add_(1)

    def await_others(self) -> None:
        self._problem.input.sub_(1)


class Separate:
    name = "separate"

    def __init__(self, log: list[str]) -> None:
        self._log = log

    def run(
        self, op: str, sizes: Sequence[int], iterations_at: Callable[[int], int]
    ) -> dict[int, Measured]:
        self._log.append(f"{op} by {self.name}")
        return {size: Measured([5.0] * iterations_at(size), 2.0, 4.0) for size in sizes}


def plan(rounds: int = 2, iterations: int = 3) -> Plan:
    return Plan("allreduce", [8, LARGE], torch.float32, rounds, iterations)


def test_all_take_turns_in_every_round() -> None:
    log: list[str] = []
    rows = measure(plan(), [Recorded("a", log), Recorded("b", log)], [Separate(log)])
    turn = ["a:8", "b:8", f"a:{LARGE}", f"b:{LARGE}", "allreduce by separate"]
    assert log == turn * 2
    assert [(row.size_bytes, row.impl, row.iterations) for row in rows] == [
        (size, impl, 6) for size in (8, LARGE) for impl in ("a", "b", "separate")
    ]


def test_rows_have_costs_and_the_bound_of_the_same_run() -> None:
    rows = measure(plan(), [Recorded("a", [])], [Separate([])])
    small, large = (row for row in rows if row.impl == "separate")
    assert small.bound_us is None
    assert small.efficiency is None
    assert large.bound_us is not None and large.bound_us > 0
    assert large.efficiency == pytest.approx(large.bound_us / 5.0)
    assert large.context_switches == pytest.approx(8.0 / 6)
    assert large.cpu_seconds_per_gb == pytest.approx(4.0 / (6 * LARGE / 1e9))


@pytest.mark.parametrize(
    ("size", "settles_after", "warm_ups"),
    # At least two; until it has settled; at most as many as take little time.
    [(8, 0, 2), (8, 50, 50), (8, 5000, 1000), (8 << 20, 50, 8), (64 << 20, 50, 2), (0, 5000, 1000)],
)
def test_times_are_taken_once_calls_have_settled(
    size: int, settles_after: int, warm_ups: int
) -> None:
    contender = Recorded("a", [], settles_after=settles_after)
    measured = run_size(Plan("allreduce", [size], torch.float32, 1, 3), contender, size)
    assert len(measured.times_us) == 3
    assert contender.calls == warm_ups + 3


@pytest.mark.parametrize("wrong_at", [0, 1, 4])
def test_no_result_goes_unchecked(wrong_at: int) -> None:
    with pytest.raises(WrongResult, match="b: allreduce of 8 bytes gave a wrong result on rank 0"):
        measure(plan(1, 3), [Recorded("a", []), Recorded("b", [], wrong_at)], [])


def test_results_are_checked_once_all_ranks_are_done() -> None:
    measured = run_size(
        Plan("allreduce", [8], torch.float32, 1, 3), RightWhenAllAreDone("a", []), 8
    )
    assert len(measured.times_us) == 3


def test_falsified_results_are_noticed() -> None:
    with pytest.raises(WrongResult, match="a: allreduce"):
        measure(plan(), [Falsified(Recorded("a", []))], [])


def test_a_stopwatch_gives_what_the_call_gave() -> None:
    watch, data = Stopwatch(), torch.zeros(2)
    assert watch.time(lambda: data) is data
    assert len(watch.measured.times_us) == 1
    assert watch.measured.times_us[0] > 0
