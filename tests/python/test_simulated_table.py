"""Tables among simulated workers: the order of their calls, and which of them wait."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mydist as md
from mydist.optim.strategies.simulation import SimulatedJob, SimulatedWorker, Simulation

SPEEDS = [1.0, 4.0, 1.0]  # Seconds of a step, by rank.


def simulation() -> Simulation:
    return Simulation(3, lambda rank, step: SPEEDS[rank])


def opened(worker: SimulatedWorker, rule: md.ps.Rule, consistency: md.ps.Consistency) -> Any:
    start = torch.full((2,), float(worker.rank))
    return SimulatedJob(worker, []).table("sums", start, rule, consistency)


def test_calls_come_in_the_order_of_the_virtual_time() -> None:
    calls: list[tuple[float, int]] = []

    def train(worker: SimulatedWorker) -> list[float]:
        table = opened(worker, md.ps.Add(), md.ps.Async())
        seen = []
        for _ in range(4):
            worker.step_done()
            seen.append(table.push_pull(torch.full((2,), 10.0**worker.rank))[0].item())
            calls.append((worker.seconds, worker.rank))
        return seen

    assert simulation().run(train) == [
        [1, 102, 203, 304],
        [314, 424, 434, 444],
        [101, 202, 303, 414],
    ], "the start is that of rank 0, and ranks take turns at one time"
    assert calls == sorted(calls)


def test_ssp_makes_a_worker_wait_until_the_slow_one_pushes() -> None:
    def train(worker: SimulatedWorker) -> list[float]:
        table = opened(worker, md.ps.Add(), md.ps.SSP(1))
        seconds = []
        for _ in range(3):
            worker.step_done()
            table.push_pull(torch.ones(2))
            seconds.append(worker.seconds)
        return seconds

    # The second push of a fast one is two ahead, and the third follows the first of the slow one.
    fast = [1.0, 4.0, 8.0]
    assert simulation().run(train) == [fast, [4.0, 8.0, 12.0], fast]


def test_a_worker_that_ends_holds_no_other() -> None:
    def train(worker: SimulatedWorker) -> float:
        table = opened(worker, md.ps.SGD(lr=1.0), md.ps.Sync())
        for _ in range(1 if worker.rank == 1 else 3):
            worker.step_done()
            table.push_pull(torch.full((2,), worker.rank + 1.0))
        return worker.seconds

    assert simulation().run(train) == [6.0, 4.0, 6.0]


def test_a_clock_without_a_gradient() -> None:
    def train(worker: SimulatedWorker) -> list[float]:
        table = opened(worker, md.ps.SGD(lr=1.0), md.ps.Sync())
        gradient = None if worker.rank == 1 else torch.ones(2)
        table.push(gradient)
        first = table.pull()[0].item()
        table.set_options(lr=0.5)
        return [first, table.push_pull(gradient)[0].item()]

    assert simulation().run(train) == [[-1.0, -1.5]] * 3, "the mean of two"


def test_a_gradient_that_is_not_finite_is_refused() -> None:
    def train(worker: SimulatedWorker) -> None:
        opened(worker, md.ps.Add(), md.ps.Async()).push(torch.tensor([1.0, float("inf")]))

    with pytest.raises(ValueError, match="'sums': the gradient of worker 0 is inf at index 1"):
        simulation().run(train)


def test_workers_that_wait_for_a_table_and_for_each_other() -> None:
    def train(worker: SimulatedWorker) -> None:
        table = opened(worker, md.ps.Add(), md.ps.SSP(0))
        if worker.rank == 1:
            worker.meet("elsewhere", 0, sum)
        table.push_pull(torch.ones(2))

    calls = r"wait in different calls: \['elsewhere', \"push_pull of table 'sums'\"\]"
    with pytest.raises(RuntimeError, match=calls):
        simulation().run(train)
