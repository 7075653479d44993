"""The methods that a sharded optimizer has in front of those of its own class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ...collectives import broadcast_
from ...errors import MydistError
from ..distributed_steps import DistributedSteps
from ..distribution import Distribution
from . import clipping, fused
from .agreement import CLIP, REFUSE, SKIP, UPDATE, Agreement
from .gradients import ShardedGradients
from .memory import MemoryUse, bucket_bytes
from .offload import on_device
from .sharded_state import entries_of, in_slices, loadable, shards_of
from .slices import MASTER, OwnPiece, Slices, cut_state


@dataclass(kw_only=True)
class ShardedDistribution(Distribution):
    """The facts of a sharded optimizer: those of a distributed one, and its slices."""

    slices: Slices
    agreement: Agreement
    stage: int = 1

    def reset(self) -> None:
        """Forgets the gradients so far."""
        self.agreement.tell(SKIP)
        super().reset()

    def synchronize(self) -> None:
        """As of every distribution. All ranks raise when one cannot take the step."""
        if self.stage == 2:
            super().synchronize()  # It calls `begin_step`.
            return
        error = self._unfit()
        try:
            super().synchronize()
        except MydistError:  # On all ranks.
            raise
        except Exception as own:
            error = error or own
        self.agreement.on_beginning(error)

    def begin_step(self, has_more: bool) -> bool:
        """Whether any rank has more gradients. Collective; see Agreement.on_beginning."""
        return self.agreement.on_beginning(self._unfit(), has_more)

    def _unfit(self) -> Exception | None:
        """Why this rank cannot take the step."""
        try:
            self.slices.expect_as_wrapped()
        except ValueError as error:
            return error
        return None

    def register(
        self, optimizer: torch.optim.Optimizer, groups: Sequence[Sequence[torch.Tensor]] = ()
    ) -> None:
        """Hooks all parameters, and cuts the new ones and the state that they have."""
        super().register(optimizer, groups)
        self.lay_out(optimizer)

    def lay_out(self, optimizer: torch.optim.Optimizer) -> None:
        """Cuts parameters that are trained since, and their state."""
        for parameter in self.slices.lay_out(self.names.of(optimizer)):
            whole = optimizer.state.pop(parameter, None)
            piece = self.slices.piece_of(parameter)
            if piece is None:
                continue
            own = cut_state(whole or {}, parameter, piece)
            if piece.master is not None:
                own[MASTER] = piece.master
            if own:
                optimizer.state[parameter] = own

    def expect_replaceable(self) -> None:
        """Raises ValueError: another wrapper would take slices for whole state."""
        raise ValueError(
            "the optimizer is wrapped by ShardedOptimizer already, and its state is cut into "
            "slices. Take the whole state with mydist.gather_state() and load it into a new "
            "optimizer"
        )


class ShardedSteps(DistributedSteps):
    """Of both stages. Never instantiated."""

    _distribution: ShardedDistribution
    _maker = "ShardedOptimizer"
    _may_scale = False  # A fused optimizer would not see what other ranks found.
    _cuts_state = True

    @property
    def _slices(self) -> Slices:
        return self._distribution.slices

    def _inner_step(self, closure: Callable[[], Any] | None, kwargs: dict[str, Any]) -> Any:
        # Not inside the class's own step: there the optimizer has pieces in place of parameters.
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        _hooked_update(self, **kwargs)
        return loss

    def _update_pieces(self, **kwargs: Any) -> None:
        unused = self._without_gradient()
        self._distribution.agreement.tell(UPDATE, _settings(self), unused)
        self._update_slices(unused, kwargs)

    def _update_slices(self, unused: Sequence[int], kwargs: dict[str, Any]) -> None:
        self._pass_on_gradients(unused)
        self._slices.begin_update()
        error: Exception | None = None
        try:
            for pieces in self._slices.turns():
                self._update_turn(pieces, kwargs)
        except Exception as own:  # The others wait for this rank's slices.
            error = own
        text = self._distribution.agreement.on_update(error)
        if text:
            is_undone = self._slices.undo()
            change = "are those of the step before" if is_undone else "have changed in part"
            raise error or MydistError(f"{text}. The parameters {change}")
        # Last: an error in the step leaves the parameters as they were.
        for piece in self._slices.pieces():
            piece.write_back()
        self._slices.share_parameters()

    def _update_turn(self, pieces: list[OwnPiece], kwargs: dict[str, Any]) -> None:
        try:
            for piece in pieces:
                piece.follow()
            trained = [piece.trained for piece in pieces]
            gradients = on_device([self._gradient_of(piece) for piece in pieces], trained)
            for tensor, gradient in zip(trained, gradients, strict=True):
                tensor.grad = gradient
            with self._slices.in_place_of_parameters(self, pieces):
                if fused.takes(self):
                    fused.step(self)
                else:
                    # The unhooked step: users' hooks see parameters, and run once.
                    step = super(DistributedSteps, type(self)).step
                    getattr(step, "__wrapped__", step)(self, **kwargs)
        finally:
            for piece in pieces:
                piece.trained.grad = None

    def _gradient_of(self, piece: OwnPiece) -> torch.Tensor | None:
        gradient = piece.parameter.grad
        return None if gradient is None else piece.part_of(gradient)

    def _without_gradient(self) -> list[int]:
        """By number, the parameters that the step leaves out."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        return [index for index, p in enumerate(parameters) if p.grad is None]

    @torch.no_grad()
    def _pass_on_gradients(self, unused: Sequence[int]) -> None:
        """Ranks that have joined get the gradients of the others, who may have changed them."""
        leader = self._distribution.agreement.leader
        if leader is None:
            return
        for number, parameter in enumerate(p for g in self.param_groups for p in g["params"]):
            if number in unused:
                parameter.grad = None
            elif self._slices.has_bucket(parameter):
                parameter.grad = broadcast_(
                    torch.zeros_like(parameter) if parameter.grad is None else parameter.grad,
                    leader,
                    f"sharded.gradient.{self._slices.label}{number}",
                    self._slices.process_set,
                )

    def _synchronize(self) -> None:
        self._distribution.agreement.tell(SKIP)
        self._distribution.lay_out(self)
        super()._synchronize()

    def join(self) -> None:
        """Says that this rank has no more data. Returns when all ranks have called it. Collective.

        Until then this rank takes part in the steps of the others: its gradients are zeros, its
        slices are updated with the settings of the others, and hooks of steps do not run. Average
        still divides by all ranks. So every rank has the same parameters when it returns.

        Raises:
            ValueError: gradients are being reduced, that is between backward and step(); or, in
                stage 2, the others use `full_grads()` or GradScaler.
            MydistError: a step of the others failed.
        """
        agreement = self._distribution.agreement
        self.zero_grad()
        agreement.is_over = self._slices.size == 1
        agreement.has_joined = True
        try:
            while not agreement.is_over:
                self._synchronize()
                if not agreement.is_over:
                    self._follow_others()
                self.zero_grad()
        finally:
            agreement.has_joined = False

    def _follow_others(self) -> None:
        """Does what the ranks with data do, up to the end of a step."""
        call = ""
        while call not in (UPDATE, SKIP):
            call, *arguments = self._distribution.agreement.hear()
            if call == REFUSE:
                raise ValueError(*arguments)
            if call == CLIP:
                self.clip_grad_norm_(*arguments)
            if call == UPDATE:
                settings, unused = arguments
                for group, of_others in zip(self.param_groups, settings, strict=True):
                    group.update(of_others)
                self._update_slices(unused, {})
                self._distribution.end_step()

    def finish(self) -> None:
        """Every rank has the whole model after each step; there is nothing to do.

        Raises:
            ValueError: gradients are being reduced, that is between backward and step().
        """
        pending = self._distribution.pending()
        if pending:
            raise ValueError(
                f"finish() was called after backward() and before step(), while the gradient of "
                f"'{pending[0]}' is being reduced; call it after step()"
            )

    def memory(self) -> MemoryUse:
        """Bytes on this rank: see MemoryUse. State counts from the first step on."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        whole = sum(p.numel() * p.dtype.itemsize for p in parameters)
        if (host := self._slices.host) is not None:
            shared = self._slices.shared_bytes
            whole += shared // len(host.ranks) - shared
        kept = sum(
            value.numel() * value.dtype.itemsize
            for values in self.state.values()
            for key, value in values.items()
            if isinstance(value, torch.Tensor) and key != "step"
        )
        state, offloaded = (0, kept) if self._slices.offloads else (kept, 0)
        buckets = [bucket.plan for bucket in self._slices.buckets]
        live = bucket_bytes(buckets, self._slices.size, self._distribution.stage)
        if self._distribution.stage == 1:
            trained = sum(p.numel() * p.dtype.itemsize for p in parameters if p.requires_grad)
            return MemoryUse(whole, trained, state, live, offloaded=offloaded)
        own = sum(piece.flat.numel() * piece.flat.dtype.itemsize for piece in self._slices.pieces())
        held = sum(b.slice_length(self._slices.rank) * b.dtype.itemsize for b in buckets)
        return MemoryUse(whole, own, state, live, held - own, offloaded)

    def state_dict(self) -> dict[str, Any]:
        """This rank's slices. Not collective; see `gather_state` for the whole.

        Returns:
            What the class itself returns, with flat slices as state. `"shards"` has name, shape,
            start and length of each, by the number of the parameter. The slices are tensors that
            `torch.distributed.checkpoint` saves and loads; a pickle has them as ordinary ones.
        """
        return {**in_slices(self, super().state_dict()), "shards": shards_of(self)}

    def _whole_state_dict(self) -> dict[str, Any]:
        return super().state_dict()

    def _load_own(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for index, parameter, piece in entries_of(self):
            values = state["state"].get(index)
            if piece is None or values is None:
                continue
            if piece.master is None:
                self.state[parameter].pop(MASTER, None)
                continue
            # torch has cast it to the dtype of the parameter.
            own = {
                k: v.to(piece.master.device, copy=True) if isinstance(v, torch.Tensor) else v
                for k, v in values.items()
            }
            piece.master.copy_(own.get(MASTER, piece.flat))
            self.state[parameter] = {**own, MASTER: piece.master}

    def _name_of(self, parameter: torch.Tensor) -> str:
        names = self._distribution.names.of(self)
        return next(name for known, name in names if known is parameter)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes slices as this rank saved them, or the whole state that one process would have.

        Raises:
            ValueError: the slices are those of another rank, size or model, or the class refuses.
        """
        self._load_own(loadable(self, state_dict))


def _settings(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Of each group, without its parameters."""
    return [
        {key: value for key, value in group.items() if key != "params"}
        for group in optimizer.param_groups
    ]


def _update_pieces(optimizer: ShardedSteps, **kwargs: Any) -> None:
    optimizer._update_pieces(**kwargs)


# Runs the hooks that users have registered around it, as the class's own step would.
_hooked_update = torch.optim.Optimizer.profile_hook_step(_update_pieces)


class Stage2Steps(ShardedSteps):
    """Gradients are sharded as well: `.grad` is None from backward to backward."""

    @property
    def _gradients(self) -> ShardedGradients:
        path = self._distribution.paths[0]
        assert isinstance(path, ShardedGradients)
        return path

    def _gradient_of(self, piece: OwnPiece) -> torch.Tensor | None:
        return self._gradients.of(piece)

    def _views_with_gradients(self) -> list[torch.Tensor]:
        """This rank's pieces of the parameters, each with the reduced gradient of its part."""
        views = []
        for piece in self._slices.pieces():
            piece.follow()
            piece.flat.grad = self._gradient_of(piece)
            views.append(piece.flat)
        return views

    def _pass_on_gradients(self, unused: Sequence[int]) -> None:
        """They are in slices, and every rank has its own."""

    def _update_slices(self, unused: Sequence[int], kwargs: dict[str, Any]) -> None:
        super()._update_slices(unused, kwargs)
        self._gradients.drop()

    def clip_grad_norm_(
        self,
        max_norm: float,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,
    ) -> torch.Tensor:
        """As DistributedOptimizer's: the norm is that of the whole gradients. Collective.

        Raises:
            ValueError: `norm_type` is not above 0.
            RuntimeError: with `error_if_nonfinite`, the norm is not finite.
            Others as `step`.
        """
        self._synchronize_if_needed()
        self._distribution.agreement.tell(CLIP, max_norm, norm_type)
        views = self._views_with_gradients()
        norm = clipping.joint_norm(views, norm_type, self._slices.process_set)
        clipping.expect_finite(norm, norm_type, error_if_nonfinite)
        torch.nn.utils.clip_grads_with_norm_(views, max_norm, norm, foreach)
        return norm

    @contextmanager
    def full_grads(self) -> Iterator[None]:
        """Within this context every `.grad` is whole and reduced, and may be changed. Collective.

        Changes must be the same on all ranks; this rank's slice of them counts. The memory of the
        whole gradients is needed meanwhile.
        """
        self._synchronize_if_needed()
        self._distribution.agreement.refuse("full_grads()")
        self._gradients.show()
        try:
            yield
        finally:
            self._gradients.hide()

    def _groups_to_unscale(self) -> list[dict[str, Any]]:
        groups = super()._groups_to_unscale()
        self._distribution.agreement.refuse("GradScaler")
        views = self._views_with_gradients()
        views = clipping.same_overflow_everywhere(views, self._slices.process_set)
        if clipping.overflows(views):
            self._gradients.drop_at_next_backward()
        return [{**groups[0], "params": views}]
