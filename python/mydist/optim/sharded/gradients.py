"""The gradient path of stage 2: each bucket is reduced into the slice of its owner.

It has the methods that an optimizer calls of its path (see gradient_path.py). All ranks reduce the
same buckets in the same order, in as many rounds. A bucket leaves when this rank has all gradients
that it expects, and the one before has arrived. A rank may so wait inside backward: the oldest
bucket that anybody waits for has been started, or will be, by a rank that waits for nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ... import _C
from ...collectives.compression import Compression
from ..gradient_path import ReductionOptions
from .slices import HeldBucket, OwnPiece, Slices, sparse_gradient

SHARD, FULL = "shard", "full"


@dataclass(eq=False)
class _Gradient:
    parameter: torch.Tensor
    name: str
    passes: int = 0  # Backward passes since the last synchronize.
    is_idle: bool = False  # No backward came to it in the last step.
    is_given: bool = False  # Since the gradients were used, there has been one on this rank.
    is_removed: bool = False  # The program has set the whole gradient to None.
    hook: Any = None


@dataclass
class _Flight:
    bucket: HeldBucket
    memory: torch.Tensor  # Of the whole bucket.
    handle: int
    context: Any  # Of the compression.


class ShardedGradients:
    """Those of one optimizer. All calls come from the thread that trains."""

    def __init__(
        self,
        options: ReductionOptions,
        slices: Slices,
        accumulate: str,
        check: Callable[[], None],
        begin: Callable[[bool], bool],
    ) -> None:
        """check: compares the ranks, if that is due; called before gradients are reduced.

        begin: called when all buckets are reduced, with whether this rank has more gradients. Says
        whether any rank has, and raises if a rank cannot take the step.
        """
        self._options = options
        # Alone, nothing travels.
        self._compression = options.compression if slices.size > 1 else Compression.none
        self._slices = slices
        self._accumulate = accumulate
        self._check = check
        self._begin_step = begin
        self._passes = options.backward_passes_per_step
        self._enabled = True
        self._touched = self._drops = False
        self._is_unused = False  # Whether gradients are reduced that no step has used.
        self._gradients: dict[int, _Gradient] = {}  # By id() of the parameter.
        self._shards: dict[HeldBucket, torch.Tensor] = {}
        self._filled: set[HeldBucket] = set()  # Whose shard has a gradient.
        self._flight: _Flight | None = None
        self._round = self._next = 0  # The bucket that leaves next.

    def add_parameter(
        self, parameter: torch.Tensor, name: str, group: str, group_size: int
    ) -> None:
        gradient = _Gradient(parameter, name)
        frozen = not parameter.requires_grad  # torch hooks only what is not, but it may change.
        parameter.requires_grad_(True)
        register: Any = parameter.register_post_accumulate_grad_hook
        gradient.hook = register(self._hook_for(gradient))
        parameter.requires_grad_(not frozen)
        self._gradients[id(parameter)] = gradient

    def of(self, piece: OwnPiece) -> torch.Tensor | None:
        """The reduced gradient of a piece; None for a frozen parameter, and before synchronize."""
        if piece.bucket not in self._filled or not self._has_gradient(piece.parameter):
            return None
        return self._part_of_shard(piece)

    def synchronize(self) -> None:
        self._begin()
        while self._round < self._rounds():
            self._reduce_next()
        self._land()
        # A gradient may have come after its bucket had left.
        if self._begin_step(any(p.grad is not None for b in self._trained() for p in b.parameters)):
            for bucket in self._trained():
                self._reduce(bucket)
            self._land()
        if any(gradient.passes for gradient in self._gradients.values()):
            for gradient in self._gradients.values():
                gradient.is_idle = gradient.passes == 0
        for gradient in self._gradients.values():
            if gradient.parameter.numel() == 0:
                gradient.parameter.grad = None
        self._forget()
        self._touched = False
        self._is_unused = bool(self._filled)

    def set_backward_passes_per_step(self, passes: int) -> None:
        self._passes = passes

    def set_enabled(self, enabled: bool) -> None:
        self._enabled = enabled

    def pending(self) -> list[str]:
        return [g.name for g in self._gradients.values() if self._rounds_ready(g) > 0]

    def touched(self) -> bool:
        return self._touched

    def reset(self) -> None:
        self._forget()
        self.drop()

    def let_go(self) -> None:
        """Nothing is held: ranks are compared before the first bucket leaves."""

    def remove(self) -> None:
        for gradient in self._gradients.values():
            gradient.hook.remove()
        # What is in flight ends by itself and keeps its memory until then. A wait could last for
        # ever: other ranks may never come to it.
        self._flight = None
        self._gradients.clear()
        self._shards.clear()
        self._filled.clear()

    def drop(self) -> None:
        """The gradients have been used; the next backward starts from zero."""
        self._filled.clear()
        self._drops = False
        self._is_unused = False
        for gradient in self._gradients.values():
            gradient.is_given = gradient.is_removed = False

    def drop_at_next_backward(self) -> None:
        """A GradScaler skips this step, and perhaps only the model's gradients are reset."""
        self._drops = True

    @torch.no_grad()
    def show(self) -> None:
        """Every trained parameter gets its whole gradient. Collective."""

        def take(bucket: HeldBucket, whole: torch.Tensor) -> None:
            for parameter, start, count in bucket.members():
                if self._has_gradient(parameter):
                    part = whole[start : start + count].clone()
                    parameter.grad = part.view(parameter.shape)

        def write(bucket: HeldBucket, own: torch.Tensor) -> None:
            own.copy_(self._shards[bucket])

        self._slices.gather("gradients", write, take)

    @torch.no_grad()
    def hide(self) -> None:
        """This rank's slice of what is in `.grad` becomes the gradient; `.grad` becomes None.

        A parameter whose `.grad` is None is left out of the step.
        """
        for piece in self._slices.pieces():
            shown = piece.parameter.grad
            if piece.bucket in self._filled and shown is not None:
                self._part_of_shard(piece).copy_(piece.part_of(shown))
        for bucket in self._filled:
            for parameter in bucket.parameters:
                gradient = self._gradients[id(parameter)]
                gradient.is_removed = parameter.grad is None
                gradient.is_given |= parameter.grad is not None
                parameter.grad = None

    def _part_of_shard(self, piece: OwnPiece) -> torch.Tensor:
        start = piece.place.offset
        flat = self._shards[piece.bucket][start : start + piece.place.length]
        return flat.view(piece.shape)

    def _has_gradient(self, parameter: torch.Tensor) -> bool:
        """Whether the step uses it, once its bucket is reduced."""
        gradient = self._gradients[id(parameter)]
        # Alone, an unused parameter stays without a gradient, as torch leaves it.
        is_given = gradient.is_given or self._slices.size > 1
        return parameter.requires_grad and is_given and not gradient.is_removed

    def _hook_for(self, gradient: _Gradient) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            if gradient.parameter.grad is not None and gradient.parameter.grad.is_sparse:
                raise sparse_gradient(gradient.name)
            if not self._touched:
                self._begin()
                self._expect_used()
            self._touched = True
            if not self._enabled:
                return
            if gradient.passes == self._passes:
                raise ValueError(
                    f"Gradient of '{gradient.name}' was computed more than "
                    f"backward_passes_per_step ({self._passes}) times since the last step; call "
                    "step() in between, or raise it with set_backward_passes_per_step()"
                )
            gradient.passes += 1
            while self._is_due():
                self._reduce_next()

        return hook

    def _begin(self) -> None:
        if self._drops:
            self.drop()

    def _expect_used(self) -> None:
        if self._is_unused:
            raise ValueError(
                "backward() follows a step that was skipped: the gradients of the backward before "
                "are reduced and would be added to. Call optimizer.zero_grad() when a step is "
                "skipped; model.zero_grad() does not reach them in stage 2"
            )

    def _rounds(self) -> int:
        """How often each bucket is reduced in a step, by all ranks."""
        return self._passes if self._accumulate == SHARD else 1

    def _rounds_ready(self, gradient: _Gradient) -> int:
        """For how many rounds the parameter has had its gradient."""
        return gradient.passes // (self._passes // self._rounds())

    def _trained(self) -> list[HeldBucket]:
        return [bucket for bucket in self._slices.buckets if bucket.is_trained]

    def _is_due(self) -> bool:
        """Whether the next bucket has all gradients that are expected."""
        if self._round == self._rounds():
            return False
        trained = self._trained()
        for parameter in trained[self._next].parameters:
            gradient = self._gradients[id(parameter)]
            is_expected = parameter.requires_grad and not gradient.is_idle
            if is_expected and self._rounds_ready(gradient) <= self._round:
                return False
        return True

    def _reduce_next(self) -> None:
        trained = self._trained()
        if trained:
            self._reduce(trained[self._next])
        self._next += 1
        if self._next >= len(trained):
            self._next = 0
            self._round += 1

    @torch.no_grad()
    def _reduce(self, bucket: HeldBucket) -> None:
        """Starts it. What its parameters have in `.grad` is taken from them."""
        self._check()
        whole = self._slices.memory.take(bucket.plan, bucket.parameters[0].device)
        for parameter, start, count in bucket.members():
            part = whole[start : start + count]
            # One that has changed is an error of synchronize, on all ranks together.
            is_cut = parameter.requires_grad and parameter.numel() == count
            if parameter.grad is None or not is_cut:
                part.zero_()
            else:
                part.view(parameter.shape).copy_(parameter.grad)
                parameter.grad = None
                self._gradients[id(parameter)].is_given = True
        whole[bucket.plan.length :].zero_()
        # One at a time: the engine would copy two of them into one.
        self._land()
        travels, context = self._compression.compress(whole)
        own = self._shards.get(bucket)
        if own is None:
            own = torch.empty_like(bucket.slice_of(whole, self._slices.rank))
            self._shards[bucket] = own
        # Straight to its place, unless there is something to add it to.
        is_direct = bucket not in self._filled and travels is whole
        handle = self._enqueue(bucket, travels, own if is_direct else None)
        self._flight = _Flight(bucket, whole, handle, context)

    def _enqueue(
        self, bucket: HeldBucket, travels: torch.Tensor, output: torch.Tensor | None
    ) -> int:
        """To the owner, or to each rank its slice. Returns the handle."""
        name = f"sharded.gradients.{self._slices.label}{bucket.name}"
        op, group = int(self._options.op), self._options.process_set
        owner = bucket.plan.owner
        if owner is None:
            outputs = [] if output is None else [output]
            return _C.enqueue_reducescatter(
                [travels], [name], "", op, 1.0, 1.0, group.process_set_id, outputs
            )
        root = group.ranks[owner]
        output = output if owner == self._slices.rank else None
        return _C.enqueue_reduce(travels, output, root, name, op, 1.0, 1.0, group.process_set_id)

    def _land(self) -> None:
        """Waits for the bucket that is in flight, if there is one."""
        flight, self._flight = self._flight, None
        if flight is None:
            return
        results = _C.wait(flight.handle)
        own = self._shards[flight.bucket]
        self._slices.memory.give_back(flight.memory)
        # Where a bucket has an owner, the others get no result.
        for reduced in results:
            if reduced is own:
                continue
            reduced = self._compression.decompress(reduced, flight.context)
            if flight.bucket in self._filled:
                own.add_(reduced)
            else:
                own.copy_(reduced)
        self._filled.add(flight.bucket)

    def _forget(self) -> None:
        for gradient in self._gradients.values():
            gradient.passes = 0
        self._round = self._next = 0
