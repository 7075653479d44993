"""AsynchronousGradients: each rank pushes gradients to servers and trains on what they answer."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any, ClassVar

from ...ps.consistency import SSP, Consistency, check_consistency
from ...ps.rules import Rule, check_rule
from .job import StrategyJob
from .served import ServedStrategy

__all__ = ["AsynchronousGradients"]

# Settings of torch's optimizers that do not change what a step computes; lr is looked at apart.
_HARMLESS = {"lr", "foreach", "fused", "capturable", "differentiable"}


@dataclass(eq=False)
class AsynchronousGradients(ServedStrategy):
    """Each step pushes the gradient; the parameters become what the servers answer.

    The servers take the step, by `rule`, and the wrapped optimizer takes none. So its settings must
    be the default ones, apart from the learning rate: with a rule that has `lr` both have the same,
    and a scheduler of the optimizer changes that of the rule, on rank 0. A rule without `lr` pays
    no heed to the optimizer's. Buffers stay those of each rank until `finish()`.

    With SSP or Async a gradient is applied alone, to parameters that other ranks have changed
    meanwhile: as many pushes arrive per step as there are ranks, so the rate is that of one batch.
    Sources: Dean et al. 2012, "Large scale distributed deep networks"; Ho et al. 2013, "More
    effective distributed ML via a stale synchronous parallel parameter server"; for the rule
    DCASGD Zheng et al., arXiv:1609.08326. With Sync the mean over all ranks is applied.

    Memory: two copies of the parameters, the anchor and what was read last; on the servers the
    parameters in float32 and the state of the rule.

    Attributes:
        rule: such as md.ps.SGD(lr=0.1) or md.ps.DCASGD(lr=0.1, lam=1, adaptive=True).
        consistency: which answers wait for other ranks.
    """

    rule: Rule
    consistency: Consistency = SSP(3)  # noqa: RUF009 - it is frozen
    takes_inner_steps: ClassVar[bool] = False
    pushes_gradients: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Raises TypeError for what is no rule or no consistency."""
        check_rule("AsynchronousGradients: rule", self.rule)
        check_consistency("AsynchronousGradients: consistency", self.consistency)

    def begin(self, job: Any) -> None:
        """Raises ValueError for settings of the wrapped optimizer that would have no effect."""
        super().begin(job)
        _refuse_unused_settings(job)
        self._rate = self._rate_of_optimizer()
        # Schedulers put it there when they change the rate.
        first = self._rate_of_optimizer("initial_lr")
        if first is not None and first != self.rule.lr:  # type: ignore[attr-defined]
            raise ValueError(
                f"AsynchronousGradients: the optimizer has lr={first} and the rule "
                f"lr={self.rule.lr}; "  # type: ignore[attr-defined]
                "give both the same for these parameters"
            )

    def served_rule(self) -> Rule:
        """The one given, at the present rate."""
        return self.rule if self._rate is None else self.rule.changed(lr=self._rate)

    def served_consistency(self) -> Consistency:
        """The one given."""
        return self.consistency

    def after_step(self, step: int) -> None:
        """Pushes the gradient and takes the answer for parameters."""
        rate = self._rate_of_optimizer()
        if rate != self._rate:
            self._rate = rate
            if self.job.rank == 0 and (table := self.open()) is not None:
                table.set_options(lr=rate)
        part = self._part
        part.write(self.push_pull(None if self.job.has_overflow else part.gradients()))

    def _rate_of_optimizer(self, key: str = "lr") -> float | None:
        """That of all groups; None where the rule has no rate, or the optimizer has none."""
        groups = [group for group in self.job.groups if group["params"] and "lr" in group]
        rates = {float(group.get(key, group["lr"])) for group in groups}
        if not rates or not hasattr(self.rule, "lr"):
            return None
        if len(rates) > 1:
            raise ValueError(
                f"AsynchronousGradients: the optimizer's groups have the rates {sorted(rates)}, "
                "and the rule has one for all; use one rate, or a strategy for each group"
            )
        return rates.pop()


def _refuse_unused_settings(job: StrategyJob) -> None:
    defaults = inspect.signature(type(job.optimizer).__init__).parameters
    for group in job.groups:
        if not group["params"]:
            continue  # Other parameters are in it, which a strategy of their own trains.
        for name, value in group.items():
            default = defaults[name].default if name in defaults else inspect.Parameter.empty
            if name in _HARMLESS or default is inspect.Parameter.empty or value == default:
                continue
            raise ValueError(
                f"AsynchronousGradients: the optimizer has {name}={value!r}, which has no effect, "
                "because the servers take the steps; give it to the rule, such as "
                f"md.ps.SGD(lr=0.1, momentum=0.9), and leave the optimizer's {name} at {default!r} "
                "for these parameters"
            )
