"""Simulation: the workers of a job in one process, on a virtual clock.

Strategies run on it unchanged, so their convergence and the time that they would take can be seen
without processes, networks or waiting:

    simulation = Simulation(8, step_seconds=lambda rank, step: 4.0 if rank == 0 else 1.0)

    def train(worker: SimulatedWorker) -> torch.Tensor:
        optimizer = worker.optimizer(torch.optim.SGD([weights], lr=0.1), md.LocalSGD(every=8))
        ...

    models = simulation.run(train)
    print(simulation.seconds)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from math import inf
from typing import Any, NamedTuple, TypeVar

import torch

from ...ps.consistency import Consistency
from ...ps.rules import Rule
from ..consistency import ConsistencyCheck
from ..distribution import Distribution, make_shares
from ..gradient_names import GradientNames
from ..gradient_path import SoloPath
from ..optimizer_arguments import checked_strategies
from ..wrapping import wrap
from .job import Await, JobTable, StrategyJob
from .part import Tensors
from .simulated_table import SimulatedTable, local_table
from .steps import StrategySteps
from .strategy import Strategy, check_number, check_period

_Result = TypeVar("_Result")
_Fold = Callable[[list[Any]], Any]


class _Meeting(NamedTuple):
    """What a worker waits for."""

    call: str
    value: Any
    fold: _Fold
    since: float  # When the worker gave the value.


class Simulation:
    """A job of `size` workers, each in a thread. One of them runs at a time.

    A worker keeps its turn until it waits for others, or calls a table. Then the one goes on whose
    clock is behind the most, so a table gets its calls in the order of the virtual time; of calls
    at one time that of the lower rank is first. So what workers exchange does not depend on the
    machine; the order in which programs do other things, print for example, is not that of the
    virtual time. A table answers at once, unless its consistency makes a worker wait for others.

    Attributes:
        seconds: virtual time at which the last worker ended.
    """

    def __init__(
        self,
        size: int,
        step_seconds: Callable[[int, int], float] = lambda rank, step: 1.0,
        round_seconds: float = 0.0,
    ) -> None:
        """step_seconds: of a worker's step, by rank and number of the step, from 0.

        round_seconds: from the arrival of the last worker at a meeting until its end. A worker that
            has work left until it needs the result does not wait for it.

        Raises ValueError for a wrong size or time.
        """
        check_period("Simulation", "size", size)
        check_number(
            "Simulation", "round_seconds", round_seconds, lambda s: 0 <= s < inf, "of at least 0"
        )
        self.size = size
        self.seconds = 0.0
        self.step_seconds = step_seconds
        self._round_seconds = round_seconds
        self._workers: list[SimulatedWorker] = []
        self._error: BaseException | None = None
        self._all_done = threading.Event()

    def run(self, program: Callable[[SimulatedWorker], _Result]) -> list[_Result]:
        """Runs the program on every worker and returns what it returns, by rank.

        A worker whose program has returned takes part in later meetings like a rank in join().

        Raises: the first exception of a worker; RuntimeError if workers wait in different calls.
        """
        self._workers = [SimulatedWorker(self, rank) for rank in range(self.size)]
        self._error = None
        self._all_done.clear()
        results: dict[int, _Result] = {}

        def body(worker: SimulatedWorker) -> None:
            worker.await_turn()
            try:
                if self._error is None:
                    results[worker.rank] = program(worker)
            except BaseException as error:  # of the user's program
                self._error = self._error or error
            worker.end()
            self.pass_turn()

        threads = [threading.Thread(target=body, args=[worker]) for worker in self._workers]
        for thread in threads:
            thread.start()
        self.pass_turn()
        # Ctrl-C in Thread.join() would make Python take the thread for ended.
        while not self._all_done.is_set():
            try:
                self._all_done.wait()
            except KeyboardInterrupt as error:
                self._error = self._error or error
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error
        self.seconds = max(worker.seconds for worker in self._workers)
        return [results[rank] for rank in range(self.size)]

    @property
    def has_failed(self) -> bool:
        """Whether a worker has raised an exception."""
        return self._error is not None

    def pass_turn(self) -> None:
        """Lets the worker run that is behind the most, after a meeting if all wait for one."""
        while left := [worker for worker in self._workers if not worker.is_done]:
            # After an error all of them are to end.
            if ready := [w for w in left if w.is_ready or self._error is not None]:
                min(ready, key=lambda w: (w.seconds, w.rank)).turn.release()
                return
            self._meet(left)
        self._all_done.set()

    def _meet(self, waiting: list[SimulatedWorker]) -> None:
        """Ends the call in which all workers wait."""
        meetings = [worker.meeting for worker in waiting if worker.meeting is not None]
        calls = sorted({worker.call for worker in waiting})
        if len(calls) > 1 or not meetings:
            self._error = RuntimeError(f"simulated workers wait in different calls: {calls}")
            return
        try:
            result = meetings[0].fold([meeting.value for meeting in meetings])
        except Exception as error:  # The values do not fit each other.
            self._error = error
            return
        end = max(meeting.since for meeting in meetings) + self._round_seconds
        for worker in waiting:
            worker.meeting, worker.outcome = None, result
            worker.seconds = max(worker.seconds, end)

    def table_changed(self, seconds: float) -> None:
        """Calls that have waited for this change of a table, at this time, are over."""
        for worker in self._workers:
            if worker.operation is not None and worker.operation.is_over():
                worker.operation = None
                worker.seconds = max(worker.seconds, seconds)


class SimulatedWorker:
    """One worker, as its program sees it.

    Attributes:
        rank, size: as of a real rank.
        seconds: its virtual clock.
    """

    def __init__(self, simulation: Simulation, rank: int) -> None:
        self.rank, self.size = rank, simulation.size
        self.seconds = 0.0
        self.turn = threading.Lock()
        self.turn.acquire()  # A release gives the turn.
        self.meeting: _Meeting | None = None
        self.outcome: Any = None
        self.operation: Any = None  # Of a table, which this worker waits for.
        self.call = ""  # In which it waits.
        self.is_done = False
        self._tables: list[Any] = []  # Those of the compiled part.
        self._simulation = simulation
        self._steps = 0

    def optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        communication: Strategy | Mapping[str, Strategy],
        named_buffers: Sequence[tuple[str, torch.Tensor]] = (),
    ) -> Any:
        """As DistributedOptimizer(optimizer, communication=…), among the simulated workers.

        Names of parameters are those that the optimizer was made with.
        """
        names = GradientNames(optimizer, None)
        path: Any = SimulatedPath
        shares = make_shares(
            checked_strategies(communication),
            list(names.of(optimizer)),
            named_buffers,
            lambda buffers, _: SimulatedJob(self, buffers),
            lambda run, _: path(self),
        )
        distribution = Distribution(shares, names, ConsistencyCheck(-1))
        return wrap(optimizer, StrategySteps, distribution, [])

    def meet(self, call: str, value: Any, fold: _Fold, since: float | None = None) -> Any:
        """Waits until all workers are in this call, and returns `fold` of their values by rank.

        since: the time at which this worker gave its value; None is now.
        """
        since = self.seconds if since is None else since
        self.meeting, self.call = _Meeting(call, value, fold, since), call
        self._simulation.pass_turn()
        self.await_turn()
        self._check()
        return self.outcome

    @property
    def is_ready(self) -> bool:
        """Whether it could go on."""
        return self.meeting is None and self.operation is None

    def open_table(self, label: str, like: torch.Tensor, spec: dict[str, Any]) -> Any:
        """The table of the compiled part that all workers share; they meet for it."""
        ranks = range(self.size)

        def create(values: list[tuple[int, torch.Tensor]]) -> Any:
            table = local_table(values[0][1], ranks=list(ranks), **spec)
            for rank in set(ranks) - {rank for rank, _ in values}:
                table.finish(rank)
            return table

        table = self.meet(f"table {label}", (self.rank, like), create)
        self._tables.append(table)
        return table

    def call_table(self, call: str, start: Callable[[], Any]) -> None:
        """Starts an operation once no worker is behind this one, and waits until it is over."""
        self._simulation.pass_turn()
        self.await_turn()
        self._check()
        operation = start()
        self._simulation.table_changed(self.seconds)
        if operation is None:
            return
        if not operation.is_over():
            self.operation, self.call = operation, call
            self._simulation.pass_turn()
            self.await_turn()
            self._check()
        operation.check()

    def end(self) -> None:
        """Its program has ended: no other waits for its pushes."""
        self.is_done = True
        if self._simulation.has_failed:
            return  # What other workers wait for would be written to memory that they have left.
        for table in self._tables:
            table.finish(self.rank)
        self._simulation.table_changed(self.seconds)

    def step_done(self) -> None:
        """The clock goes on by one step."""
        self.seconds += self._simulation.step_seconds(self.rank, self._steps)
        self._steps += 1
        self._check()

    def await_turn(self) -> None:
        """Waits until the simulation lets this worker run."""
        self.turn.acquire()

    def _check(self) -> None:
        if self._simulation.has_failed:
            raise SystemExit  # Another worker's exception is raised.


class SimulatedPath(SoloPath):
    """Averages gradients in `synchronize`, where the real one begins during backward."""

    def __init__(self, worker: SimulatedWorker) -> None:
        self._worker = worker
        self._parameters: list[torch.Tensor] = []

    def add_parameter(
        self, parameter: torch.Tensor, name: str, group: str, group_size: int
    ) -> None:
        """See GradientPath."""
        self._parameters.append(parameter)

    def synchronize(self) -> None:
        """Every gradient becomes its mean; zeros count where there is none."""
        own = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        mean = [total / self._worker.size for total in self._worker.meet("gradients", own, _sums)]
        for parameter, gradient in zip(self._parameters, mean, strict=True):
            parameter.grad = gradient

    def touched(self) -> bool:
        """Gradients are reduced in every step."""
        return True


class SimulatedJob(StrategyJob):
    """A strategy's job among simulated workers."""

    def __init__(self, worker: SimulatedWorker, buffers: Sequence[torch.Tensor]) -> None:
        super().__init__(buffers)
        self.rank, self.size = worker.rank, worker.size
        self._worker = worker

    def step_taken(self) -> None:
        """See StrategyJob."""
        self._worker.step_done()

    def table(
        self, label: str, like: torch.Tensor, rule: Rule, consistency: Consistency
    ) -> JobTable:
        """See StrategyJob."""
        return SimulatedTable(self._worker, label, like, rule, consistency)

    def _start_sum(self, tensors: Tensors, exact: Tensors, label: str) -> Await:
        own = [*tensors, *exact]
        moving = [tensor.clone() for tensor in own]
        since = self._worker.seconds

        def wait() -> None:
            totals = self._worker.meet(label, moving, _sums, since)
            for tensor, total in zip(own, totals, strict=True):
                tensor.copy_(total)

        return wait

    def _total(self, number: float, label: str) -> float:
        return float(self._worker.meet(label, number, sum))

    def gather(self, row: Sequence[int]) -> list[list[int]]:
        """See StrategyJob."""
        rows: list[list[int]] = self._worker.meet("gather", list(row), list)
        return rows

    def broadcast(self, tensors: Sequence[torch.Tensor], root: int) -> None:
        """See StrategyJob."""
        for tensor, value in zip(tensors, self.broadcast_object(list(tensors), root), strict=True):
            tensor.detach().copy_(value)

    def broadcast_object(self, value: Any, root: int) -> Any:
        """See StrategyJob."""
        return self._worker.meet("broadcast", deepcopy(value), lambda values: values[root])

    def copy_training(self, root: int) -> None:
        """See StrategyJob."""
        self.broadcast(self.parameters, root)


def _sums(values: list[Tensors]) -> Tensors:
    """Over the workers, in the order of their ranks."""
    totals = [tensor.clone() for tensor in values[0]]
    for tensors in values[1:]:
        for total, tensor in zip(totals, tensors, strict=True):
            total.add_(tensor)
    return totals
