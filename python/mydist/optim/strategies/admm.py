"""admm(): consensus ADMM; every rank solves a problem of its own, and all agree on one solution."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any

import torch

from ...collectives import broadcast, grouped_allreduce
from ...collectives.arguments import check_process_set
from ...collectives.objects import allgather_object
from ...errors import MismatchError
from ...job import topology
from ...job.error_text import difference_text, wrong_type
from ...job.process_set import ProcessSet, global_process_set
from ...reduce_op import Sum
from .strategy import check_number, check_period

__all__ = ["admm"]

LocalSolver = Callable[[torch.Tensor, float], torch.Tensor]
Prox = Callable[[torch.Tensor, float], torch.Tensor]
Total = Callable[[list[torch.Tensor]], list[torch.Tensor]]


@dataclass(frozen=True)
class AdmmResult:
    """What admm() has found; the same on all ranks.

    Attributes:
        z: the solution, of the shape of `start`.
        rounds: how many there were.
        primal: the norm of x − z over all ranks; how far the ranks are from agreeing.
        dual: the norm of rho times the last change of z, over all ranks.
        rho: the last penalty.
        converged: whether both norms were small enough before `max_rounds`.
    """

    z: torch.Tensor
    rounds: int
    primal: float
    dual: float
    rho: float
    converged: bool


def admm(
    local_solver: LocalSolver,
    start: torch.Tensor,
    rho: float = 1.0,
    adaptive: bool = True,
    relaxation: float = 1.6,
    absolute: float = 1e-4,
    relative: float = 1e-3,
    max_rounds: int = 100,
    prox: Prox | None = None,
    process_set: ProcessSet = global_process_set,
) -> AdmmResult:
    """Minimises the sum over ranks of f(x), plus g(x), by consensus ADMM. Collective; blocks.

    Source: Boyd et al., "Distributed Optimization and Statistical Learning via the Alternating
    Direction Method of Multipliers", 2011, sections 3.3, 3.4.1, 3.4.3 and 7.1.

    Args:
        local_solver: `local_solver(v, rho)` returns the x that minimises f(x) + rho/2 ‖x − v‖² on
            this rank's data. v and x have the shape and dtype of `start`.
        start: the first z, a floating-point tensor of any shape; that of the first rank counts.
        rho: the penalty at the start, above 0.
        adaptive: doubles rho while the primal norm is above 10 times the dual one, halves it in the
            reverse case.
        relaxation: above 0 and below 2; 1 is none.
        absolute: it stops when both norms are below sqrt(size · elements) · absolute plus relative
            times the norms of their terms.
        relative: see absolute.
        max_rounds: the most rounds.
        prox: `prox(v, weight)` returns the z that minimises g(z) + weight/2 ‖z − v‖². None: g is 0.
        process_set: the ranks that take part.

    Raises:
        ValueError, TypeError: an argument is wrong, or local_solver or prox returns another shape.
        MismatchError: settings are not the same on all ranks.
        MydistError: the job failed; see mydist.errors.
    """
    check_process_set("admm", process_set)
    check_number("admm", "rho", rho, lambda value: value > 0, "above 0")
    check_number("admm", "relaxation", relaxation, lambda a: 0 < a < 2, "above 0 and below 2")
    check_number("admm", "absolute", absolute, lambda value: value >= 0, "of at least 0")
    check_number("admm", "relative", relative, lambda value: value >= 0, "of at least 0")
    check_period("admm", "max_rounds", max_rounds)
    if not isinstance(start, torch.Tensor) or not start.is_floating_point():
        raise wrong_type("admm: start", start, "a floating-point tensor")
    settings = (
        f"admm(rho={float(rho)}, adaptive={bool(adaptive)}, relaxation={float(relaxation)}, "
        f"absolute={float(absolute)}, relative={float(relative)}, max_rounds={max_rounds}, "
        f"prox={'None' if prox is None else 'given'})"
    )
    _expect_everywhere(settings, process_set)
    options: dict[str, Any] = {"process_set": process_set}
    first = broadcast(start.detach(), process_set.ranks[0], name="admm.start", **options)

    def total(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        return grouped_allreduce(tensors, op=Sum, name="admm.round", **options)

    consensus = Consensus(local_solver, prox, total, process_set.size(), relaxation)
    return consensus.solve(first, rho, adaptive, (absolute, relative), max_rounds)


def _expect_everywhere(settings: str, process_set: ProcessSet) -> None:
    """Raises MismatchError unless all ranks have them; they would stop after different rounds."""
    own = topology.rank(), settings
    table = dict(allgather_object(own, name="admm.settings", process_set=process_set))
    if len(set(table.values())) > 1:
        what = "admm: settings differ between ranks"
        raise MismatchError(
            difference_text(what, table, [], "Pass the same settings to admm() on every rank.")
        )


class Consensus:
    """The rounds of ADMM; `total` adds up tensors over the ranks."""

    def __init__(
        self,
        local_solver: LocalSolver,
        prox: Prox | None,
        total: Total,
        size: int,
        relaxation: float,
    ) -> None:
        self._solve, self._prox, self._total = local_solver, prox, total
        self._size, self._relaxation = size, relaxation

    def solve(
        self,
        start: torch.Tensor,
        rho: float,
        adaptive: bool,
        tolerances: tuple[float, float],
        max_rounds: int,
    ) -> AdmmResult:
        """See admm(). x, u and z have the shape of `start`; u is the scaled dual variable."""
        absolute, relative = tolerances
        z, u = start.clone(), torch.zeros_like(start)
        floor = sqrt(self._size * start.numel()) * absolute
        primal = dual = float("inf")
        for done in range(1, max_rounds + 1):
            x = _checked(self._solve(z - u, rho), start, "local_solver")
            relaxed = self._relaxation * x + (1 - self._relaxation) * z
            # The norm of x − z needs the new z, so it takes a second, small sum.
            (mean,) = self._total([relaxed + u])
            mean /= self._size
            old, z = z, self._next(mean, rho)
            u = u + relaxed - z
            (squares,) = self._total([_squares(x - z, x, u)])
            primal, own, scaled = squares.sqrt().tolist()
            dual = rho * sqrt(self._size) * float((z - old).double().norm())
            shared = sqrt(self._size) * float(z.double().norm())
            if primal <= floor + relative * max(own, shared) and (
                dual <= floor + relative * rho * scaled
            ):
                return AdmmResult(z, done, primal, dual, rho, True)
            if adaptive and max(primal, dual) > 10 * min(primal, dual):
                factor = 2.0 if primal > dual else 0.5
                rho, u = rho * factor, u / factor
        return AdmmResult(z, max_rounds, primal, dual, rho, False)

    def _next(self, mean: torch.Tensor, rho: float) -> torch.Tensor:
        if self._prox is None:
            return mean
        return _checked(self._prox(mean, self._size * rho), mean, "prox")


def _squares(*tensors: torch.Tensor) -> torch.Tensor:
    """The squared norm of each, shape (len(tensors),), float64, on the CPU."""
    return torch.stack([tensor.double().square().sum().cpu() for tensor in tensors])


def _checked(result: Any, like: torch.Tensor, what: str) -> torch.Tensor:
    if not isinstance(result, torch.Tensor) or result.shape != like.shape:
        shape = tuple(result.shape) if isinstance(result, torch.Tensor) else type(result).__name__
        raise ValueError(f"admm: {what} returned {shape}, expected shape {tuple(like.shape)}")
    return result.detach()
