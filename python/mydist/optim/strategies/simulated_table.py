"""SimulatedTable: a table of the parameter server among simulated workers, on their clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

from ...ps import binding
from ...ps.consistency import Consistency
from ...ps.rules import Rule


class TableUser(Protocol):
    """What a table needs of a simulated worker; see there."""

    rank: int

    def open_table(self, label: str, like: torch.Tensor, spec: dict[str, Any]) -> Any:
        """The table that all workers share."""

    def call_table(self, call: str, start: Callable[[], Any]) -> None:
        """Starts an operation in its turn, and waits until it is over."""


class SimulatedTable:
    """See JobTable. The clocks, waits and rules are those of the servers, in this process."""

    def __init__(
        self,
        worker: TableUser,
        label: str,
        like: torch.Tensor,
        rule: Rule,
        consistency: Consistency,
    ) -> None:
        self._worker, self._label, self._rule = worker, label, rule
        self._shape = like.shape
        spec = {"name": label, "rule": rule, "consistency": consistency}
        self._shared = worker.open_table(label, like.clone(), spec)

    def push(self, gradient: torch.Tensor | None) -> None:
        """See JobTable."""
        self._call("push", lambda: self._push(gradient, None))

    def pull(self, out: torch.Tensor | None = None) -> torch.Tensor:
        """See JobTable."""
        target = self._target(out)
        self._call("pull", lambda: self._shared.pull(self._worker.rank, target.data_ptr()))
        return target

    def push_pull(
        self, gradient: torch.Tensor | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See JobTable."""
        target = self._target(out)
        self._call("push_pull", lambda: self._push(gradient, target))
        return target

    def finish(self) -> None:
        """See JobTable."""
        self._call("finish", lambda: self._shared.finish(self._worker.rank))

    def resume(self) -> None:
        """See JobTable."""
        self._call("resume", lambda: self._shared.resume(self._worker.rank))

    def set_options(self, **options: Any) -> None:
        """See JobTable."""
        self._rule = self._rule.changed(**options)
        spec = self._rule.name, self._rule.options()
        self._call("set_options", lambda: self._shared.set_options(spec))

    def explain(self) -> list[tuple[int, int, int]]:
        """There is no server."""
        return []

    def _push(self, gradient: torch.Tensor | None, target: torch.Tensor | None) -> Any:
        rank = self._worker.rank
        if gradient is not None:
            first = binding.load().first_not_finite(gradient.data_ptr(), gradient.numel())
            if first >= 0:
                raise ValueError(
                    f"push of table '{self._label}': the gradient of worker {rank} is "
                    f"{float(gradient.view(-1)[first])} at index {first}; nothing has been applied"
                )
        sent, output = (0 if tensor is None else tensor.data_ptr() for tensor in (gradient, target))
        return self._shared.push(rank, sent, output)

    def _target(self, out: torch.Tensor | None) -> torch.Tensor:
        return torch.empty(self._shape, dtype=torch.float32, device="cpu") if out is None else out

    def _call(self, kind: str, start: Callable[[], Any]) -> None:
        self._worker.call_table(f"{kind} of table '{self._label}'", start)


def local_table(
    like: torch.Tensor, name: str, rule: Rule, consistency: Consistency, ranks: list[int]
) -> Any:
    """One of the compiled part that starts at `like`, for workers of these ranks.

    Raises ValueError for a wrong option of the rule, MydistError where mydist was built without the
    parameter server.
    """
    module = binding.load()
    spec = module.TableSpec(
        name=name,
        elements=like.numel(),
        piece_elements=like.numel(),
        rows=0,
        width=0,
        init=("zeros", 0.0, 0),
        rule=(rule.name, rule.options()),
        consistency=consistency.kind,
        bound=consistency.bound,
        ranks=ranks,
    )
    return module.LocalTable(spec, like.data_ptr())
