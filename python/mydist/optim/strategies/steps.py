"""The methods of a wrapped optimizer whose steps may stay local."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ..distributed_steps import DistributedSteps
from ..gradient_names import parameters_of
from ..gradient_path import densify
from ..optimizer_arguments import check_closure


class StrategySteps(DistributedSteps):
    """What differs when a strategy decides whether a step reduces gradients or stays local."""

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Updates the parameters, on this rank alone if the step is local, and ends a round if due.

        Args:
            closure: recomputes the loss, as torch optimizers take it; every rank must pass one.

        Raises:
            TypeError: `closure` is neither callable nor None.
            ValueError: `finish()` was not called after `join()`, or samples were not counted.
            MismatchError: parameters, strategy or settings are not the same on all ranks.
            MydistError: a round failed; the parameters are those of the last round.
        """
        check_closure(closure)
        run = self._distribution.run
        if run.is_local:
            self._distribution.check(self)
        run.before_step()
        if not run.is_local:
            return super().step(closure, **kwargs)
        self._densify_if_asked()
        run.job.has_overflow = self._has_overflow()
        if run.job.has_overflow:
            self._distribution.end_step()
            return None
        if not run.strategy.takes_inner_steps:
            return self._leave_gradients(self._densifying(closure))
        with self._local():
            return super().step(self._densifying(closure), **kwargs)

    step.hooked = True  # type: ignore[attr-defined]  # as in DistributedSteps

    def state_dict(self) -> dict[str, Any]:
        """As of every torch optimizer, with the state of the strategy under "communication".

        Anchors and momenta of the strategy are equal on all ranks; the rest is this rank's.
        """
        state = super().state_dict()
        return {**state, "communication": self._distribution.run.state_dict()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes what `state_dict` gave; parameters are not in it and stay as they are.

        A state without "communication" makes the strategy begin with the next step.

        Raises:
            ValueError: the state belongs to other parameters, or gradients are being reduced, that
                is between backward and step().
        """
        if pending := self._distribution.path.pending():
            raise ValueError(
                f"load_state_dict() was called after backward() and before step(), while the "
                f"gradient of '{pending[0]}' is being reduced; call it after step()"
            )
        super().load_state_dict(dict(state_dict))
        if "communication" in state_dict:
            self._distribution.run.load_state_dict(state_dict["communication"])
            self._distribution.follow()
        else:
            self._distribution.run.begin_anew()

    def rank_state_dict(self) -> dict[str, Any]:
        """What differs between ranks: parameters, buffers, state of the optimizer, counts.

        `Checkpoint` saves it for every rank.
        """
        run = self._distribution.run
        return {
            "parameters": [parameter.detach().clone() for parameter in parameters_of(self)],
            "buffers": [buffer.detach().clone() for buffer in run.job.buffers.tensors],
            "optimizer": super().state_dict(),
            "counts": run.counts(),
        }

    def load_rank_state_dict(self, state: Mapping[str, Any] | None) -> bool:
        """Takes what `rank_state_dict` gave on this rank.

        None drops what differs between ranks: parameters become those of the last round. So does a
        state of another strategy, which has no anchors for the steps of each rank.

        Returns whether steps of the ranks may be lost; none are before the first local step.
        """
        run = self._distribution.run
        if state is None or run.is_foreign:
            run.drop_local_steps()
            return run.has_begun or run.is_foreign
        with torch.no_grad():
            for parameter, value in zip(parameters_of(self), state["parameters"], strict=True):
                parameter.copy_(value)
        run.job.buffers.write(state["buffers"])
        super().load_state_dict(state["optimizer"])
        run.load_counts(state["counts"])
        self._distribution.follow()
        return False

    def synchronize(self) -> None:
        """Reduces the gradients; those of a local step stay as they are, or become dense."""
        if self._distribution.run.is_local:
            self._densify_if_asked()
        else:
            super().synchronize()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters. Raises ValueError once the first local step has made anchors."""
        if self._distribution.run.has_begun:
            raise ValueError(
                "add_param_group: the strategy has anchors for the present parameters; call "
                "finish(), add the parameters to the optimizer, and wrap it again"
            )
        super().add_param_group(param_group)

    def _synchronize_if_needed(self) -> None:
        if self._distribution.run.is_local:
            self._densify_if_asked()
        else:
            super()._synchronize_if_needed()

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # True makes GradScaler call step() after an overflow, too, so that the step counts.
        return self._distribution.run.is_local or super()._step_supports_amp_scaling

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    def _densify_if_asked(self) -> None:
        if self._distribution.densifies:
            for parameter in parameters_of(self):
                densify(parameter)

    def _densifying(self, closure: Callable[[], Any] | None) -> Callable[[], Any] | None:
        if closure is None or not self._distribution.densifies:
            return closure

        def densified_closure() -> Any:
            loss = closure()
            self._densify_if_asked()
            return loss

        return densified_closure

    def _leave_gradients(self, closure: Callable[[], Any] | None) -> Any:
        """A step in which the wrapped optimizer takes none."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        self._distribution.end_step()
        return loss

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
    def _local(self) -> Iterator[None]:
        """Within this context DistributedSteps.step() is the step of the wrapped optimizer."""
        distribution = self._distribution
        previous, distribution.skip = distribution.skip, True
        # torch's optimizers refuse what only their fused forms can use.
        scaling = {} if self._unscales_itself() else self._take_scaling()
        try:
            yield
        finally:
            distribution.skip = previous
            self.__dict__.update(scaling)

    def _take_scaling(self) -> dict[str, Any]:
        """Removes what GradScaler has put on the optimizer, and returns it."""
        names = [name for name in ("grad_scale", "found_inf") if name in self.__dict__]
        return {name: self.__dict__.pop(name) for name in names}

    def _unscales_itself(self) -> bool:
        steps = self._distribution.run.strategy.takes_inner_steps
        return steps and bool(self.__dict__.get("_step_supports_amp_scaling"))
