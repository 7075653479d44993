"""The methods that a wrapped optimizer has in front of those of its own class."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .distribution import Distribution
from .gradient_path import SoloPath
from .optimizer_arguments import check_backward_passes, check_closure, check_samples


class DistributedSteps(torch.optim.Optimizer):
    """The methods that are put in front of the wrapped optimizer's class; never instantiated."""

    _distribution: Distribution
    _may_scale = True  # Whether a fused optimizer may unscale gradients itself.
    _maker = "DistributedOptimizer"  # What made it; in messages.
    _cuts_state = False  # Whether each rank has a slice of the state only.

    def step(self, closure: Callable[[], Any] | None = None, **kwargs: Any) -> Any:
        """Waits for the reduced gradients and updates the parameters.

        Args:
            closure: recomputes the loss, as torch optimizers take it. The gradients are
                synchronized right after the closure returns, so it runs zero_grad, forward and
                backward; every rank must pass one. The value returned is this rank's own loss.

        Raises:
            TypeError: `closure` is neither callable nor None.
            ValueError: a gradient was changed or replaced between backward and step.
            MismatchError: the parameters are not the same on all ranks; compared at the first step
                and as `mydistrun --check-consistency` says.
            MydistError: the reduction failed; the parameters are unchanged.
        """
        check_closure(closure)
        distribution = self._distribution
        if distribution.skip:
            synchronized_closure = closure
        elif closure is not None:
            synchronized_closure = self._synchronizing(closure)
        else:
            synchronized_closure = None
            if self._needs_synchronize():
                self._synchronize()
            elif distribution.explicit:
                self._warn_once()
        result = self._inner_step(synchronized_closure, kwargs)
        distribution.end_step()
        return result

    # The base class would otherwise wrap this step a second time and run step hooks twice.
    step.hooked = True  # type: ignore[attr-defined]

    def synchronize(self) -> None:
        """Reduces what is not reduced yet, waits, and leaves the results in `.grad`. Blocking.

        Parameters without a gradient on this rank take part with zeros, so ranks may use
        different parameters. Call it to look at or change gradients before `step()`, which must
        then run inside `skip_synchronize()`.

        Raises:
            ValueError: after `GradScaler.unscale_()`, which has reduced the gradients already.
            Others as `step`.
        """
        distribution = self._distribution
        reduces = any(not isinstance(path, SoloPath) for path in distribution.paths)
        if reduces and distribution.unscaled and not distribution.touched():
            raise ValueError(
                "synchronize() was called after GradScaler.unscale_(), which has already reduced "
                "the gradients. Call synchronize() before unscale_(), or leave it out"
            )
        self._synchronize()
        distribution.explicit = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Within this context `step()` does not synchronize.

        Raises:
            ValueError: gradients are being reduced and `synchronize()` has not been called.
        """
        pending = self._distribution.pending()
        if pending:
            raise ValueError(
                f"skip_synchronize() was entered while the gradient of '{pending[0]}' is being "
                "reduced; call synchronize() first"
            )
        previous = self._distribution.skip
        self._distribution.skip = True
        try:
            yield
        finally:
            self._distribution.skip = previous

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes within this context only accumulate; the next one outside reduces all."""
        distribution = self._distribution
        previous = distribution.accumulating
        distribution.accumulating = True
        distribution.follow()
        try:
            yield
        finally:
            distribution.accumulating = previous
            distribution.follow()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Resets the gradients.

        Raises:
            ValueError: gradients are being reduced, that is between backward and step().
        """
        distribution = self._distribution
        pending = distribution.pending()
        if pending:
            raise ValueError(
                f"zero_grad() was called after backward() and before step(), while the gradient "
                f"of '{pending[0]}' is being reduced ({len(pending)} gradients in all); call it "
                "after step() or synchronize()"
            )
        distribution.reset()
        super().zero_grad(set_to_none)

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Changes how many backward passes are accumulated before gradients are reduced.

        Raises:
            ValueError: `passes` is no int of at least 1.
        """
        check_backward_passes(passes)
        for path in self._distribution.paths:
            path.set_backward_passes_per_step(passes)

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        """Synchronizes, then scales the reduced gradients so that their joint norm fits.

        The next `step()` does not synchronize again. Arguments as
        `torch.nn.utils.clip_grad_norm_`. With a strategy for each part of the model, each part is
        scaled by its own norm.

        Returns:
            The norm of all gradients before clipping, of shape (); the same on all ranks, unless
            some gradients stay local.

        Raises:
            RuntimeError: with `error_if_nonfinite`, the norm is not finite.
            Others as `step`.
        """
        self._synchronize_if_needed()
        norms = [
            torch.nn.utils.clip_grad_norm_(
                share.parameters, max_norm, norm_type, error_if_nonfinite, foreach
            )
            for share in self._distribution.shares.values()
        ]
        if len(norms) == 1:
            return norms[0]
        on_one_device = torch.stack([norm.to(norms[0].device) for norm in norms])
        total: torch.Tensor = torch.linalg.vector_norm(on_one_device, norm_type)
        return total

    def finish(self) -> None:
        """Gives every rank the model to evaluate, the same on all ranks. Collective; blocks.

        Call it before evaluation, at the end, and after `join()`. A strategy averages what the
        ranks have done since the last round; training may go on from there. Ranks that made fewer
        steps because they joined get the parameters, and with SynchronousGradients the state of the
        optimizer, of a rank that made all of them.

        Raises:
            ValueError: gradients are being reduced, that is between backward and step().
            MydistError: the job failed; the parameters are those of the last round.
        """
        pending = self._distribution.pending()
        if pending:
            raise ValueError(
                f"finish() was called after backward() and before step(), while the gradient of "
                f"'{pending[0]}' is being reduced; call it after step()"
            )
        self._distribution.finish()

    def count_samples(self, count: int) -> None:
        """Says how many samples the gradients of the next step come from.

        Strategies with `weighted=True` weigh ranks by their samples; for others it has no effect.

        Raises:
            ValueError: `count` is no int of at least 0.
        """
        check_samples(count)
        for run in self._distribution.runs:
            run.count_samples(count)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters, which are then reduced as well; call it alike on every rank.

        Raises:
            ValueError: a strategy has begun with anchors of its present parameters, no pattern
                takes a new one, or the group has a momentum besides that of a codec.
        """
        super().add_param_group(param_group)
        try:
            self._distribution.check_groups(self)
            self._distribution.register(self)
        except ValueError:
            self.param_groups.pop()
            raise

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Raises: an optimizer that is tied to running reductions has no copy."""
        raise TypeError(
            f"a {self._maker} can be neither copied nor pickled; "
            "save state_dict() and wrap a new optimizer"
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        # GradScaler.step() asks for this right before it reads and unscales the gradients.
        self._distribution.units.note_scaler(sys._getframe(1).f_locals.get("self"))
        self._before_unscaling()
        return self._may_scale and bool(self.__dict__.get("_step_supports_amp_scaling", False))

    @_step_supports_amp_scaling.setter
    def _step_supports_amp_scaling(self, value: bool) -> None:
        self.__dict__["_step_supports_amp_scaling"] = value

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """As of every torch optimizer."""
        # GradScaler.unscale_() asks for nothing else before it writes into the gradients.
        caller = sys._getframe(1)
        if caller.f_code.co_name == "_unscale_grads_":
            self._distribution.units.note_scaler(caller.f_locals.get("self"))
            return self._groups_to_unscale()
        groups: list[dict[str, Any]] = self.__dict__["param_groups"]
        return groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.__dict__["param_groups"] = groups

    def _groups_to_unscale(self) -> list[dict[str, Any]]:
        """The groups whose gradients a GradScaler is about to write into."""
        self._before_unscaling()
        self._distribution.unscaled = True
        return self.param_groups

    def _before_unscaling(self) -> None:
        """Gradients have to be reduced by then, or ranks would disagree about skipping the step."""
        self._synchronize_if_needed()

    def _inner_step(self, closure: Callable[[], Any] | None, kwargs: dict[str, Any]) -> Any:
        """The step of the wrapped optimizer."""
        arguments = () if closure is None else (closure,)
        return super().step(*arguments, **kwargs)

    def _synchronize(self) -> None:
        distribution = self._distribution
        distribution.synchronized = distribution.unscaled = distribution.agreed = False
        distribution.check()
        distribution.synchronize()
        distribution.synchronized = True
        distribution.explicit = False

    def _needs_synchronize(self) -> bool:
        """Whether the gradients are not reduced yet, or a backward followed."""
        return not self._distribution.synchronized or self._distribution.touched()

    def _synchronize_if_needed(self) -> None:
        if self._needs_synchronize():
            self._synchronize()

    def _synchronizing(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def synchronized_closure() -> Any:
            loss = closure()
            self._synchronize()
            return loss

        return synchronized_closure

    def _warn_once(self) -> None:
        if not self._distribution.warned:
            self._distribution.warned = True
            warnings.warn(
                "step() was called after synchronize() without skip_synchronize(); the gradients "
                "are not reduced a second time. Write `with optimizer.skip_synchronize(): "
                "optimizer.step()`",
                stacklevel=3,
            )
