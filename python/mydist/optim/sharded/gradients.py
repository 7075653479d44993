"""The gradient path of stage 2: each bucket is reduced into the slice of its owner.

It has the methods that an optimizer calls of its path (see gradient_path.py). All ranks reduce the
same buckets in the same order, in as many rounds. A bucket leaves when this rank has all gradients
that it expects. A rank may so wait for an older bucket inside backward: the oldest one that anybody
waits for has been started, or will be, by a rank that waits for nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...collectives import allreduce, reducescatter_async, synchronize
from ...collectives.compression import Compression
from ...reduce_op import Max
from ..gradient_path import ReductionOptions
from .memory import LIVE_BUCKETS
from .slices import HeldBucket, OwnPiece, Slices

SHARD, FULL = "shard", "full"


@dataclass(eq=False)
class _Gradient:
    parameter: torch.Tensor
    name: str
    passes: int = 0  # Backward passes since the last synchronize.
    is_idle: bool = False  # No backward came to it in the last step.
    is_given: bool = False  # Since the gradients were used, there has been one on this rank.
    hook: Any = None


class ShardedGradients:
    """Those of one optimizer. All calls come from the thread that trains."""

    def __init__(
        self,
        options: ReductionOptions,
        slices: Slices,
        accumulate: str,
        check: Callable[[], None],
    ) -> None:
        """check: compares the ranks, if that is due; called before gradients are reduced."""
        self._options = options
        # Alone, nothing travels.
        self._compression = options.compression if slices.size > 1 else Compression.none
        self._slices = slices
        self._accumulate = accumulate
        self._check = check
        self._passes = options.backward_passes_per_step
        self._enabled = True
        self._touched = self._drops = False
        self._gradients: dict[int, _Gradient] = {}  # By id() of the parameter.
        self._shards: dict[HeldBucket, torch.Tensor] = {}
        self._flights: deque[tuple[HeldBucket, torch.Tensor, int]] = deque()
        self._spare: list[torch.Tensor] = []  # Memory of buckets that have landed.
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
        shard = self._shards.get(piece.bucket)
        if shard is None or not piece.parameter.requires_grad:
            return None
        # Alone, an unused parameter stays without a gradient, as torch leaves it.
        if self._slices.size == 1 and not self._gradients[id(piece.parameter)].is_given:
            return None
        return shard[piece.place.offset : piece.place.offset + piece.place.length]

    def synchronize(self) -> None:
        self._begin()
        while self._round < self._rounds():
            self._reduce_next()
        self._land_all()
        if self._anybody_has_more():
            for bucket in self._trained():
                self._reduce(bucket)
            self._land_all()
        if any(gradient.passes for gradient in self._gradients.values()):
            for gradient in self._gradients.values():
                gradient.is_idle = gradient.passes == 0
        for gradient in self._gradients.values():
            if gradient.parameter.numel() == 0:
                gradient.parameter.grad = None
        self._forget()
        self._touched = False
        self._spare.clear()

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

    def remove(self) -> None:
        for gradient in self._gradients.values():
            gradient.hook.remove()
        while self._flights:
            synchronize(self._flights.popleft()[2])  # Other ranks wait for it.
        self._gradients.clear()
        self._shards.clear()

    def drop(self) -> None:
        """The gradients have been used; the next backward starts from zero."""
        self._shards.clear()
        self._drops = False
        for gradient in self._gradients.values():
            gradient.is_given = False

    def drop_at_next_backward(self) -> None:
        """A GradScaler skips this step, and perhaps only the model's gradients are reset."""
        self._drops = True

    @torch.no_grad()
    def show(self) -> None:
        """Every trained parameter gets its whole gradient. Collective."""

        def take(bucket: HeldBucket, whole: torch.Tensor) -> None:
            for parameter, start, count in bucket.members():
                if parameter.requires_grad:
                    part = whole[start : start + count].clone()
                    parameter.grad = part.view(parameter.shape)

        self._slices.gather("gradients", lambda bucket: self._shards[bucket], take)

    @torch.no_grad()
    def hide(self) -> None:
        """This rank's slice of what is in `.grad` becomes the gradient; `.grad` becomes None."""
        for piece in self._slices.pieces():
            own, shown = self.of(piece), piece.parameter.grad
            if own is not None and shown is not None:
                own.copy_(piece.part_of(shown))
        for bucket in self._slices.buckets:
            for parameter in bucket.parameters:
                parameter.grad = None

    def _hook_for(self, gradient: _Gradient) -> Callable[[torch.Tensor], None]:
        def hook(_: torch.Tensor) -> None:
            if gradient.parameter.grad is not None and gradient.parameter.grad.is_sparse:
                raise ValueError(
                    f"the gradient of '{gradient.name}' is sparse, which a sharded optimizer "
                    "cannot cut; create the layer with sparse=False"
                )
            if not self._touched:
                self._begin()
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
        while len(self._flights) >= LIVE_BUCKETS or any(bucket is b for b, _, _ in self._flights):
            self._land()
        memory = self._take_memory(bucket)
        whole = memory[: bucket.plan.slice_length * bucket.plan.ranks]
        for parameter, start, count in bucket.members():
            part = whole[start : start + count]
            if parameter.grad is None or not parameter.requires_grad:
                part.zero_()
            else:
                part.view(parameter.shape).copy_(parameter.grad)
                parameter.grad = None
                self._gradients[id(parameter)].is_given = True
        whole[bucket.plan.length :].zero_()
        handle = reducescatter_async(
            whole,
            name=f"sharded.gradients.{bucket.name}",
            op=self._options.op,
            process_set=self._options.process_set,
            compression=self._compression,
        )
        self._flights.append((bucket, memory, handle))

    def _take_memory(self, bucket: HeldBucket) -> torch.Tensor:
        device, dtype = bucket.parameters[0].device, bucket.plan.dtype
        for index, memory in enumerate(self._spare):
            if memory.dtype == dtype and memory.device == device:
                return self._spare.pop(index)
        like = [b.plan for b in self._slices.buckets if b.plan.dtype == dtype]
        longest = max(plan.slice_length * plan.ranks for plan in like)
        return torch.empty(longest, dtype=dtype, device=device)

    def _land(self) -> None:
        bucket, memory, handle = self._flights.popleft()
        own = synchronize(handle)
        self._spare.append(memory)
        earlier = self._shards.get(bucket)
        if earlier is None:
            self._shards[bucket] = own
        else:
            earlier.add_(own)

    def _land_all(self) -> None:
        while self._flights:
            self._land()

    def _anybody_has_more(self) -> bool:
        """Whether a gradient came after its bucket had left, on any rank. Collective."""
        left = any(p.grad is not None for b in self._trained() for p in b.parameters)
        own = torch.tensor([int(left)], dtype=torch.int32)
        anywhere = allreduce(
            own, op=Max, name="sharded.late_gradients", process_set=self._options.process_set
        )
        return bool(int(anywhere))

    def _forget(self) -> None:
        for gradient in self._gradients.values():
            gradient.passes = 0
        self._round = self._next = 0
