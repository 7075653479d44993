"""TorchState: what training is made of, with a copy to return to when a rank is lost."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch

from ..collectives.objects import broadcast_object
from ..collectives.reductions import allreduce
from ..job.topology import size
from ..job.worker import worker
from ..optim.distributed_steps import DistributedSteps
from ..optim.state import broadcast_optimizer_state, broadcast_parameters
from ..reduce_op import Max
from .interrupt import HostsUpdatedInterrupt
from .sampler import ElasticSampler

__all__ = ["TorchState"]


class TorchState:
    """Model, optimizer and other values, all with the same state on all ranks after `sync`.

    Values are attributes: `TorchState(model=m, optimizer=o, epoch=0)` has `state.epoch`. Modules,
    optimizers, samplers and whatever else has `state_dict` and `load_state_dict`, such as
    schedulers, are kept by their state dicts. All others are copied, and pickled for other ranks.

    Args:
        model: a module, or None.
        optimizer: a torch optimizer, wrapped by DistributedOptimizer or not, or None.
        values: more of them, by name.

    Raises:
        ValueError: an optimizer has only a slice of its state on each rank, or a name is taken.
    """

    def __init__(
        self,
        model: torch.nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        **values: Any,
    ) -> None:
        given = {"model": model, "optimizer": optimizer, **values}
        for name, value in given.items():
            _refuse_slices(name, value)
            if hasattr(TorchState, name):
                raise ValueError(f"TorchState: {name!r} is one of its methods; choose another name")
            setattr(self, name, value)
        self._names = tuple(given)
        self._saved: dict[str, Any] = {}
        self._reset_callbacks: list[Callable[[], None]] = []
        self.save()

    def commit(self) -> None:
        """Keeps a copy of the state to return to, and then calls `check_host_updates`."""
        self._keep()
        self.check_host_updates()

    def save(self) -> None:
        """Keeps a copy of the state. It is no commit: other ranks do not take it over."""
        for name in self._names:
            value = getattr(self, name)
            held = value.state_dict() if _has_state_dict(value) else value
            self._saved[name] = copied(held, self._saved.get(name))

    def restore(self) -> None:
        """Goes back to the copy that was kept last."""
        for name in self._names:
            value, held = getattr(self, name), copied(self._saved[name], None)
            if _has_state_dict(value):
                value.load_state_dict(held)
            else:
                setattr(self, name, held)

    def check_host_updates(self) -> None:
        """Raises HostsUpdatedInterrupt, on all ranks, when ranks or hosts have come or go.

        Collective: an allreduce of one number. The state is kept before, as `commit` does.
        """
        place = worker()
        if place is None:
            return
        is_asked = place.is_asked()
        if size() > 1:
            told = torch.tensor(int(is_asked), dtype=torch.int32)
            is_asked = bool(allreduce(told, op=Max, name="elastic.check_host_updates"))
        if is_asked:
            self._keep()
            raise HostsUpdatedInterrupt

    def sync(self) -> None:
        """Gives all ranks the state of one that has the last commit. Collective.

        Raises:
            MydistError: a rank was lost meanwhile.
        """
        place = worker()
        root = place.world.root if place is not None and place.world is not None else 0
        commit = place.commit if place is not None else 0
        if size() > 1:
            commit = self._receive(commit, root)
        self.save()
        if place is not None:
            place.commit = max(commit, 0)

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], None]]) -> None:
        """Has them called, in order, in every epoch but the first, before the state is sent.

        rank() and size() have their new values, for instance to scale the learning rate.
        """
        self._reset_callbacks += callbacks

    def on_reset(self) -> None:
        """Called when the ranks have met anew; calls the callbacks."""
        for callback in self._reset_callbacks:
            callback()

    def _keep(self) -> None:
        self.save()
        if (place := worker()) is not None:
            place.commit += 1

    def _receive(self, commit: int, root: int) -> int:
        """Takes everything from rank `root`; returns the number of its commit."""
        values = {name: getattr(self, name) for name in self._names}
        for value in values.values():
            if isinstance(value, ElasticSampler):  # First, as all get the state of one rank then.
                value.merge()
        large = {n: v for n, v in values.items() if isinstance(v, _SENT_AS_TENSORS)}
        small = {
            name: value.state_dict() if _has_state_dict(value) else value
            for name, value in values.items()
            if name not in large
        }
        told, commit = broadcast_object((small, commit), root, name="elastic.sync")
        for name, held in told.items():
            if _has_state_dict(values[name]):
                values[name].load_state_dict(held)
            else:
                setattr(self, name, held)
        for value in values.values():
            if isinstance(value, torch.nn.Module):
                named = value.state_dict().items()
                tensors = {n: tensor for n, tensor in named if isinstance(tensor, torch.Tensor)}
                broadcast_parameters(tensors, root)
            elif isinstance(value, torch.optim.Optimizer):
                broadcast_optimizer_state(value, root)
        return int(commit)


_SENT_AS_TENSORS = (torch.nn.Module, torch.optim.Optimizer)


def copied(value: Any, into: Any) -> Any:
    """A deep copy; its tensors are those of an earlier copy `into` where they fit."""
    if isinstance(value, torch.Tensor):
        own = value.detach()
        fits = (
            isinstance(into, torch.Tensor)
            and into.shape == own.shape
            and into.dtype == own.dtype
            and into.device == own.device
            and into.layout == own.layout == torch.strided
        )
        return into.copy_(own) if fits else own.clone()
    if type(value) in _MAPPINGS:
        old = into if isinstance(into, dict) else {}
        return {key: copied(item, old.get(key)) for key, item in value.items()}
    if type(value) is list:
        old_items = into if isinstance(into, list) and len(into) == len(value) else value
        return [
            copied(item, old if old_items is not value else None)
            for item, old in zip(value, old_items, strict=True)
        ]
    return copy.deepcopy(value)


_MAPPINGS = (dict, type(torch.nn.Module().state_dict()))


def _has_state_dict(value: Any) -> bool:
    return hasattr(value, "state_dict") and hasattr(value, "load_state_dict")


def _refuse_slices(name: str, value: Any) -> None:
    if isinstance(value, DistributedSteps) and value._cuts_state:
        raise ValueError(
            f"TorchState: {name} is a {type(value).__name__}, whose state lies in slices on the "
            "ranks. The slice of a lost rank is lost with it; use DistributedOptimizer, or save "
            "with mydist.Checkpoint and start the job again"
        )
