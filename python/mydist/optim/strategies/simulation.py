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
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, TypeVar

import torch

from ..consistency import ConsistencyCheck
from ..distributed_steps import Distribution
from ..gradient_names import GradientNames
from ..gradient_path import SoloPath
from ..wrapping import wrap
from .job import Await, StrategyJob
from .part import Tensors
from .run import StrategyRun
from .steps import StrategySteps
from .strategy import Strategy

_Result = TypeVar("_Result")
_Fold = Callable[[list[Any]], Any]


class Simulation:
    """A job of `size` workers. One of them runs at a time: the one whose clock is behind the most.

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

        round_seconds: from the arrival of the last worker at a meeting until its end.
        """
        self.size = size
        self.seconds = 0.0
        self.step_seconds = step_seconds
        self._round_seconds = round_seconds
        self._workers: list[SimulatedWorker] = []
        self._turn_over = threading.Semaphore(0)
        self._error: BaseException | None = None

    def run(self, program: Callable[[SimulatedWorker], _Result]) -> list[_Result]:
        """Runs the program on every worker and returns what it returns, by rank.

        A worker whose program has returned takes part in later meetings like a rank in join().

        Raises: the first exception of a worker; RuntimeError if workers wait in different calls.
        """
        self._workers = [SimulatedWorker(self, rank) for rank in range(self.size)]
        results: dict[int, _Result] = {}

        def body(worker: SimulatedWorker) -> None:
            worker.await_turn()
            try:
                if self._error is None:
                    results[worker.rank] = program(worker)
            except BaseException as error:  # of the user's program
                self._error = self._error or error
            worker.is_done = True
            self._turn_over.release()

        self._error = None
        threads = [threading.Thread(target=body, args=[worker]) for worker in self._workers]
        for thread in threads:
            thread.start()
        while any(not worker.is_done for worker in self._workers):
            ready = [
                w for w in self._workers if not w.is_done and (w.meeting is None or self._error)
            ]
            if not ready:
                self._meet([w for w in self._workers if not w.is_done])
                continue
            worker = min(ready, key=lambda w: (w.seconds, w.rank))
            worker.turn.release()
            self._turn_over.acquire()
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

    def end_turn(self) -> None:
        """Lets another worker run."""
        self._turn_over.release()

    def _meet(self, waiting: list[SimulatedWorker]) -> None:
        """Ends the call in which all workers wait."""
        calls = sorted({worker.meeting[0] for worker in waiting if worker.meeting is not None})
        if len(calls) > 1:
            self._error = RuntimeError(f"simulated workers wait in different calls: {calls}")
            return
        values = [worker.meeting[1] for worker in waiting if worker.meeting is not None]
        folds = [worker.meeting[2] for worker in waiting if worker.meeting is not None]
        result = folds[0](values)
        end = max(worker.seconds for worker in waiting) + self._round_seconds
        for worker in waiting:
            worker.meeting, worker.outcome, worker.seconds = None, result, end


class SimulatedWorker:
    """One worker, as its program sees it.

    Attributes:
        rank, size: as of a real rank.
        seconds: its virtual clock.
    """

    def __init__(self, simulation: Simulation, rank: int) -> None:
        self.rank, self.size = rank, simulation.size
        self.seconds = 0.0
        self.turn = threading.Semaphore(0)
        self.meeting: tuple[str, Any, _Fold] | None = None
        self.outcome: Any = None
        self.is_done = False
        self._simulation = simulation
        self._steps = 0

    def optimizer(
        self,
        optimizer: torch.optim.Optimizer,
        communication: Strategy,
        named_buffers: Sequence[tuple[str, torch.Tensor]] = (),
    ) -> Any:
        """As DistributedOptimizer(optimizer, communication=…), among the simulated workers."""
        job = SimulatedJob(self, [buffer for _, buffer in named_buffers])
        run = StrategyRun(communication, job)
        path: Any = SimulatedPath(self)
        never = ConsistencyCheck(-1)
        distribution = Distribution(path, GradientNames(optimizer, None), never, run)
        return wrap(optimizer, StrategySteps, distribution, [])

    def meet(self, call: str, value: Any, fold: _Fold) -> Any:
        """Waits until all workers are in this call, and returns `fold` of their values by rank."""
        self.meeting = call, value, fold
        self.await_others()
        return self.outcome

    def step_done(self) -> None:
        """The clock goes on by one step."""
        self.seconds += self._simulation.step_seconds(self.rank, self._steps)
        self._steps += 1
        self.await_others()

    def await_others(self) -> None:
        """Lets the workers run that are behind, or for which this one waits."""
        self._simulation.end_turn()
        self.await_turn()
        if self._simulation.has_failed:
            raise SystemExit  # Another worker's exception is raised.

    def await_turn(self) -> None:
        """Waits until the simulation lets this worker run."""
        self.turn.acquire()


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

    def _start_sum(self, tensors: Tensors, exact: Tensors, label: str) -> Await:
        own = [*tensors, *exact]
        moving = [tensor.clone() for tensor in own]

        def wait() -> None:
            for tensor, total in zip(own, self._worker.meet(label, moving, _sums), strict=True):
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
        groups = self.optimizer.param_groups
        self.broadcast([p for group in groups for p in group["params"]], root)


def _sums(values: list[Tensors]) -> Tensors:
    """Over the workers, in the order of their ranks."""
    totals = [tensor.clone() for tensor in values[0]]
    for tensors in values[1:]:
        for total, tensor in zip(totals, tensors, strict=True):
            total.add_(tensor)
    return totals
