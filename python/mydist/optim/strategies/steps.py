"""The methods of a wrapped optimizer whose steps may stay local."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from ..distributed_steps import DistributedSteps
from ..gradient_names import parameters_of
from ..optimizer_arguments import check_closure

_LOST_STEPS = (
    "Parameters are those of the last round, and the optimizer's state is that of rank 0; the "
    "steps of each rank since that round are lost"
)


class HiddenGradients:
    """Those of parameters that the wrapped optimizer must leave alone while it takes its step.

    torch changes nothing of a parameter without a gradient, whatever its momentum and decay.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self._parameters = parameters
        self._gradients: list[torch.Tensor | None] = []

    def hide(self) -> None:
        """The parameters have none from now on."""
        self._gradients = [parameter.grad for parameter in self._parameters]
        for parameter in self._parameters:
            parameter.grad = None

    def show(self) -> None:
        """Puts them back."""
        for parameter, gradient in zip(self._parameters, self._gradients, strict=False):
            parameter.grad = gradient
        self._gradients = []

    def after(self, closure: Callable[[], Any] | None) -> Callable[[], Any] | None:
        """The closure, which sees all gradients, and hides them at its end."""
        if closure is None:
            return None

        def hiding_closure() -> Any:
            self.show()
            loss = closure()
            self.hide()
            return loss

        return hiding_closure


class StrategySteps(DistributedSteps):
    """What differs when a strategy decides whether a step reduces gradients or stays local."""

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Updates the parameters, on this rank alone if the step is local, and ends a round if due.

        Args:
            closure: recomputes the loss, as torch optimizers take it; every rank must pass one.

        Raises:
            TypeError: `closure` is neither callable nor None.
            ValueError: `finish()` was not called after `join()`, samples were not counted, or a
                gradient for servers is not finite; nothing of the step has been applied.
            MismatchError: parameters, strategy or settings are not the same on all ranks.
            MydistError: a round failed; the parameters are those of the last round.
        """
        check_closure(closure)
        distribution = self._distribution
        if distribution.has_local:
            distribution.check()
        distribution.before_step()
        if not distribution.is_local:
            return super().step(closure, **kwargs)
        has_overflow = self._has_overflow()
        for run in distribution.runs:
            run.job.has_overflow = has_overflow
        if has_overflow:
            distribution.end_step()
            return None
        with self._without_scaling():
            return super().step(closure, **kwargs)

    step.hooked = True  # type: ignore[attr-defined]  # as in DistributedSteps

    def state_dict(self) -> dict[str, Any]:
        """As of every torch optimizer, with the state of the strategy under "communication".

        Anchors and momenta of the strategy are equal on all ranks; the rest is this rank's.
        """
        state = super().state_dict()
        return {**state, "communication": self._distribution.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave; parameters are not in it and stay as they are.

        A state without "communication" makes the strategy begin with the next step.

        Raises:
            ValueError: the state belongs to other parameters, or gradients are being reduced, that
                is between backward and step().
        """
        if pending := self._distribution.pending():
            raise ValueError(
                f"load_state_dict() was called after backward() and before step(), while the "
                f"gradient of '{pending[0]}' is being reduced; call it after step()"
            )
        super().load_state_dict(dict(state_dict))
        if "communication" in state_dict:
            self._distribution.load_state_dict(state_dict["communication"])
        else:
            self._distribution.begin_anew()

    def rank_state_dict(self) -> dict[str, Any]:
        """What differs between ranks: parameters, buffers, state of the optimizer, counts.

        `Checkpoint` saves it for every rank.
        """
        distribution = self._distribution
        return {
            "parameters": [parameter.detach().clone() for parameter in parameters_of(self)],
            "buffers": [buffer.detach().clone() for buffer in distribution.buffers()],
            "optimizer": super().state_dict(),
            "counts": distribution.counts(),
        }

    def load_rank_state_dict(self, state: Mapping[str, Any] | None) -> list[str]:
        """Takes what `rank_state_dict` gave on this rank.

        None drops what differs between ranks: parameters become those of the last round. So does a
        state of another strategy, which has no anchors for the steps of each rank.

        Returns sentences about what is lost: steps of the ranks, but none before the first local
        one.
        """
        distribution = self._distribution
        if state is None or any(run.is_foreign for run in distribution.runs):
            return [_LOST_STEPS] if distribution.drop_local_steps() else []
        with torch.no_grad():
            for parameter, value in zip(parameters_of(self), state["parameters"], strict=True):
                parameter.copy_(value)
            for buffer, value in zip(distribution.buffers(), state["buffers"], strict=False):
                buffer.copy_(value)
        super().load_state_dict(state["optimizer"])
        distribution.load_counts(state["counts"])
        return []

    def synchronize(self) -> None:
        """Reduces the gradients; those of a local step stay as they are, or become dense."""
        if self._distribution.is_local:
            self._distribution.synchronize()
        else:
            super().synchronize()

    def _synchronize_if_needed(self) -> None:
        if self._distribution.is_local:
            self._distribution.synchronize()
        else:
            super()._synchronize_if_needed()

    def _before_unscaling(self) -> None:
        super()._before_unscaling()
        self._distribution.agree_on_overflow()

    def _inner_step(self, closure: Callable[[], Any] | None, kwargs: dict[str, Any]) -> Any:
        hidden = HiddenGradients(self._distribution.served())
        if closure is None:
            self._distribution.refuse_gradients()
            hidden.hide()
        try:
            return super()._inner_step(hidden.after(self._refusing(closure)), kwargs)
        finally:
            hidden.show()

    def _refusing(self, closure: Callable[[], Any] | None) -> Callable[[], Any] | None:
        """The closure, after which gradients that servers do not take are refused."""
        if closure is None:
            return None

        def refusing_closure() -> Any:
            loss = closure()
            self._distribution.refuse_gradients()
            return loss

        return refusing_closure

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # True makes GradScaler call step() after an overflow, too, so that the step counts.
        if self._distribution.is_local:
            return True
        # A fused optimizer would look for overflow after ranks have agreed about it.
        return super()._step_supports_amp_scaling and not self._distribution.has_local

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    def _has_overflow(self) -> bool:
        """Unscales gradients as GradScaler would. Whether it has found one that is not finite."""
        if "found_inf" not in self.__dict__ or self._unscales_itself():
            return False  # No scaler calls, or the wrapped optimizer does both itself.
        if float(self.__dict__["found_inf"]) > 0:
            return True
        if (scale := self.__dict__.get("grad_scale")) is not None:
            for parameter in parameters_of(self):
                if parameter.grad is not None:
                    parameter.grad.div_(float(scale))
        return False

    @contextmanager
    def _without_scaling(self) -> Iterator[None]:
        """Within this context the optimizer has nothing of what GradScaler has put on it."""
        scaling: dict[str, Any] = {}
        # torch's optimizers refuse what only their fused forms can use.
        if not self._unscales_itself():
            names = [name for name in ("grad_scale", "found_inf") if name in self.__dict__]
            scaling = {name: self.__dict__.pop(name) for name in names}
        try:
            yield
        finally:
            self.__dict__.update(scaling)

    def _unscales_itself(self) -> bool:
        is_able = bool(self.__dict__.get("_step_supports_amp_scaling"))
        return is_able and not self._distribution.served()
