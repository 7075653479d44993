"""op=Adasum: every rank steps on its own gradients, and the changes of the parameters are combined.

Adasum of two changes a and b is (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b per parameter: their
sum where they are orthogonal, their average where they are parallel. Source: Maleki et al.,
"Scaling Distributed Training with Adaptive Summation", arXiv:2006.02924, which combines the steps
of the optimizers rather than the gradients, as done here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, cast

import torch

from ..collectives import allreduce_, grouped_allreduce_async_
from ..collectives.handles import synchronize_all
from ..reduce_op import Max
from .distributed_steps import DistributedSteps
from .gradient_path import ReductionOptions, SoloPath, spread_overflow
from .optimizer_arguments import check_closure


class AdasumPath(SoloPath):
    """Knows where the parameters started and brings in what the other ranks did."""

    def __init__(self, options: ReductionOptions) -> None:
        super().__init__(options)
        self._options = options
        self._alone = options.process_set.size() == 1
        self._names: dict[torch.Tensor, str] = {}
        self._groups: dict[str, list[torch.Tensor]] = {}  # Name → what is reduced together.
        self._starts: dict[torch.Tensor, torch.Tensor] = {}
        self._overflow = False  # Some rank's gradients are not finite.

    def add_parameter(
        self, parameter: torch.Tensor, name: str, group: str, group_size: int
    ) -> None:
        super().add_parameter(parameter, name, group, group_size)
        self._names[parameter] = name
        self._groups.setdefault(f"adasum.{group or name}", []).append(parameter)

    def remove(self) -> None:
        self._names.clear()
        self._groups.clear()

    def reset(self) -> None:
        self._overflow = False

    def start(self) -> None:
        """Remembers the parameters. Raises ValueError for a sparse gradient."""
        for parameter, name in self._names.items():
            sparse = parameter.grad is not None and parameter.grad.layout != torch.strided
            if sparse and not self._options.sparse_as_dense:
                raise ValueError(
                    f"gradient of '{name}' is sparse, expected a dense gradient with op=Adasum, "
                    "which compares whole steps; create the layer with sparse=False, or pass "
                    "sparse_as_dense=True to DistributedOptimizer"
                )
        self._starts = {p: p.detach().clone() for p in self._names if p.requires_grad}

    def finish(self) -> None:
        """Waits for all ranks: the parameters become start + Adasum of the changes. Blocking."""
        changes = self._reduced_changes()
        with torch.no_grad():
            for parameter, change in changes.items():
                parameter.copy_(self._starts[parameter] + change)
        self._starts = {}

    def undo(self) -> None:
        """Puts the parameters back to where they were at `start`."""
        with torch.no_grad():
            for parameter, start in self._starts.items():
                parameter.copy_(start)
        self._starts = {}

    def agree_on_overflow(self) -> None:
        """Makes every rank see a gradient that is not finite when one rank has one. Blocking."""

        def agree(is_finite: bool) -> bool:
            flag = torch.tensor([0.0 if is_finite else 1.0], dtype=torch.float32, device="cpu")
            allreduce_(flag, op=Max, name="adasum.overflow", process_set=self._options.process_set)
            return not flag

        gradients = [p.grad for p in self._names if p.grad is not None]
        self._overflow = spread_overflow(gradients, agree)

    def overflow(self) -> bool:
        """Whether the last `agree_on_overflow` found one, since `reset`."""
        return self._overflow

    def _reduced_changes(self) -> dict[torch.Tensor, torch.Tensor]:
        """Adasum over the ranks of how far each parameter moved; all are in flight at once."""
        if self._alone:
            return {}
        flights = []
        for name, members in self._groups.items():
            moving = [p for p in members if p in self._starts]
            if not moving:
                continue
            changes = [p.detach() - self._starts[p] for p in moving]
            handle = grouped_allreduce_async_(
                changes,
                name=name,
                op=self._options.op,
                process_set=self._options.process_set,
                compression=self._options.compression,
            )
            flights.append((handle, moving))
        changes = synchronize_all([handle for handle, _ in flights])
        return {
            parameter: change
            for (_, moving), of_group in zip(flights, changes, strict=True)
            for parameter, change in zip(moving, of_group, strict=True)
        }


class AdasumSteps(DistributedSteps):
    """What differs when steps are combined instead of gradients."""

    _may_scale = False  # The optimizer would look for overflow of this rank alone.

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Takes this rank's own step and combines it with those of the other ranks. Blocking.

        Args:
            closure: as torch optimizers take it; it sees this rank's parameters and loss.

        Raises:
            TypeError: `closure` is neither callable nor None.
            ValueError: a gradient is sparse.
            MydistError: the reduction failed; the parameters are unchanged.
        """
        check_closure(closure)
        path = self._path()
        if path.overflow():  # This rank's GradScaler has looked before all could agree.
            path.reset()
            return None
        path.start()
        try:
            result = super().step(closure, **kwargs)
            path.finish()
        except BaseException:
            path.undo()
            raise
        return result

    step.hooked = True  # type: ignore[attr-defined]  # as in DistributedSteps

    def synchronize(self) -> None:
        """Does nothing: gradients stay as they are on each rank, the step is reduced."""

    def skip_synchronize(self) -> NoReturn:
        """Raises ValueError: without its reduction the ranks' steps would drift apart."""
        raise ValueError(
            "skip_synchronize() cannot be used with op=Adasum, because step() itself "
            "reduces there; call step() without it"
        )

    def _before_unscaling(self) -> None:
        """See DistributedSteps: gradients stay those of each rank, but ranks skip together."""
        self._path().agree_on_overflow()

    def _path(self) -> AdasumPath:
        return cast(AdasumPath, self._distribution.paths[0])
