"""CodecPath: the gradient path of an optimizer whose gradients travel encoded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from ...codecs.codec import Codec
from ...collectives import allreduce, allreduce_async, synchronize
from ...collectives.compression import Compression, CompressorLike
from ...collectives.sparse import sparse_allreduce_async
from ...job.process_set import ProcessSet
from ...reduce_op import Max
from ..hooked_path import Gradient, HookedPath
from ..name_patterns import checked_match
from ..onebit_adam import OneBitAdam
from .choice import ByPattern
from .exchange import Arrived, BucketPlan, Exchange, Stages
from .exchanges import EXCHANGES
from .meter import Meter
from .places import Places
from .residuals import Residuals, Units

# Smaller gradients travel as they are: encoding would save less than a message costs.
LEAST_VALUES = 4096
BUCKET_BYTES = 8 << 20  # Of gradients; larger ones are buckets of their own.

# Those that mydist.explain() tells about.
live_paths: weakref.WeakSet[CodecPath] = weakref.WeakSet()


@dataclass(eq=False)
class _Bucket:
    plan: BucketPlan
    exchange: Exchange
    gradients: list[Gradient]
    ready: int = 0
    values: list[torch.Tensor] = field(default_factory=list)
    stages: Stages | None = None
    handle: int = -1
    arrived: Arrived | None = None


@dataclass(eq=False)
class _Raw:
    """One that travels as it is, or cast."""

    gradient: Gradient
    handle: int


@dataclass(frozen=True)
class CodecSettings:
    """What a path with codecs has to know.

    Attributes:
        by_pattern: see choice.by_pattern.
        places: the ranks and their hosts.
        collectives: op, factors and process set, as arguments of allreduce.
        scale: what the sum over the ranks is multiplied by.
        units_of: learning rate and loss scale of a parameter.
        momentum_of: the optimizer whose momentum travels in place of gradients, or None.
    """

    by_pattern: ByPattern
    places: Places
    collectives: Mapping[str, Any]
    scale: float
    units_of: Callable[[torch.Tensor], Units]
    momentum_of: Callable[[], OneBitAdam | None] = lambda: None

    @property
    def process_set(self) -> ProcessSet:
        """The ranks."""
        process_set: ProcessSet = self.collectives["process_set"]
        return process_set


class CodecPath(HookedPath):
    """Gradients travel in buckets, each with one codec; small ones travel as they are.

    The first part of an exchange starts in backward, the others when the step waits. They start in
    the same order on all ranks.
    """

    _takes_sparse = True

    def __init__(self, settings: CodecSettings, passes: int, sparse_as_dense: bool) -> None:
        super().__init__(passes, sparse_as_dense)
        self._settings = settings
        self._step = 0  # Those that counted.
        self._meter = Meter()
        self._by_name: dict[str, Gradient] = {}
        self.residuals = Residuals(lambda name: settings.units_of(self._by_name[name].parameter))
        self._buckets: list[_Bucket] = []
        self._bucket_of: dict[int, _Bucket] = {}  # By id() of the gradient.
        self._planned: set[int] = set()
        self._raw: list[_Raw] = []
        self._unplanned: list[Gradient] = []  # Ready, in the first step that has them.
        self._sent_raw: dict[str, str] = {}  # By name, why.
        self._error: Exception | None = None  # The first of those that starting has met.
        live_paths.add(self)

    def add_parameter(
        self, parameter: torch.Tensor, name: str, group: str, group_size: int
    ) -> None:
        super().add_parameter(parameter, name, group, group_size)
        self._by_name[name] = self._gradients[-1]

    def let_go(self) -> None:
        """See HookedPath: before the first step has a plan, all are only held."""
        for gradient in self._unplanned:
            self._land(gradient)
        self._unplanned.clear()

    def _start(self, gradients: list[Gradient]) -> None:
        for gradient in gradients:
            if id(gradient) not in self._planned:
                self._unplanned.append(gradient)
                continue
            _bring_into_layout(gradient)
            bucket = self._bucket_of.get(id(gradient))
            if bucket is None or not self._is_encoded(bucket):
                self._start_raw(gradient)
            else:
                bucket.ready += 1
                self._start_complete()

    def _is_encoded(self, bucket: _Bucket) -> bool:
        """Whether in this step. Gradients travel as they are until momenta may be encoded."""
        optimizer = self._settings.momentum_of()
        return optimizer is None or all(optimizer.is_frozen(g.parameter) for g in bucket.gradients)

    def _start_complete(self) -> None:
        """Starts the exchanges of whole buckets. Their order is the same on all ranks."""
        for bucket in self._buckets:
            if self._error is not None:
                return
            if bucket.stages is None and self._is_encoded(bucket):
                awaited = sum(gradient.takes_part for gradient in bucket.gradients)
                if bucket.ready < awaited:
                    return
                if awaited > 0:
                    self._start_bucket(bucket)

    def _start_bucket(self, bucket: _Bucket) -> None:
        """An error is raised when the step waits: by then all that flies can be waited for."""
        try:
            bucket.values = [self._values_of(gradient) for gradient in bucket.gradients]
            stages = bucket.exchange.run(bucket.values, self._step)
            with self._meter.timed():
                bucket.handle = next(stages)
            bucket.stages = stages  # Not before: what has not started has nothing to wait for.
        except Exception as error:
            self._error = self._error or error

    def _values_of(self, gradient: Gradient) -> torch.Tensor:
        """What is encoded: the gradient, or the momentum with it."""
        optimizer = self._settings.momentum_of()
        values = _flat_values(gradient)
        if optimizer is None:
            return values
        parameter = gradient.parameter
        scale = self._settings.units_of(parameter)[1] or 1.0
        momentum = optimizer.local_momentum(parameter, values.view(parameter.shape), scale)
        return momentum.reshape(-1)  # A copy where the parameter has another order in memory.

    def _start_raw(self, gradient: Gradient) -> None:
        compression = self._compression_of(gradient)
        values = gradient.order_behind()
        if values.is_sparse:
            # Factors before and after the sum cancel each other out; a sparse sum has none.
            handle = sparse_allreduce_async(
                values,
                name=gradient.name,
                op=self._settings.collectives["op"],
                process_set=self._settings.process_set,
            )
        else:
            handle = allreduce_async(
                values,
                name=gradient.name,
                compression=Compression.none if isinstance(compression, Codec) else compression,
                **self._settings.collectives,
            )
        self._raw.append(_Raw(gradient, handle))

    def _finish(self) -> None:
        try:
            self._start_rest()
            raw, self._raw = self._raw, []
            results = self._wait_for_all(raw)
            self._take(raw, results)
        finally:
            self._unplanned.clear()
            self._error = None
            for bucket in self._buckets:
                bucket.ready, bucket.values, bucket.arrived = 0, [], None
                bucket.stages, bucket.handle = None, -1

    def _start_rest(self) -> None:
        """Starts what backward has not started."""
        try:
            self._plan_new()
        except Exception as error:
            self._error = self._error or error
        for bucket in self._buckets:
            if bucket.stages is None and bucket.ready > 0 and self._is_encoded(bucket):
                self._start_bucket(bucket)

    def _wait_for_all(self, raw: list[_Raw]) -> list[torch.Tensor]:
        """The sums of the raw ones; those of the buckets are at hand then.

        Every handle has to be consumed before an error is raised. Buckets without an error go on,
        as other ranks, which may have none, wait for their parts.
        """
        first_error = self._error
        results = []
        running = [bucket for bucket in self._buckets if bucket.stages is not None]
        while running:
            following = []
            for bucket in running:
                try:
                    result = synchronize(bucket.handle)
                    if self._advance(bucket, result):
                        following.append(bucket)
                except Exception as error:
                    first_error = first_error or error
            running = following
        for flight in raw:
            try:
                results.append(synchronize(flight.handle))
            except Exception as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error
        return results

    def _advance(self, bucket: _Bucket, result: Any) -> bool:
        """Starts the next part of the exchange. False if that was the last."""
        assert bucket.stages is not None
        try:
            with self._meter.timed():
                bucket.handle = bucket.stages.send(result)
        except StopIteration as end:
            bucket.arrived = end.value
            if not bucket.arrived.keeps:  # The next bucket is still on its way.
                self._write(bucket)
            return False
        return True

    def _write(self, bucket: _Bucket) -> None:
        """Puts the sums in the place of the gradients."""
        assert bucket.arrived is not None
        grads = [g.expect_unchanged() if g.ready else None for g in bucket.gradients]
        with torch.no_grad(), self._meter.timed():
            bucket.arrived.write()
            for grad, value in zip(grads, bucket.values, strict=True):
                if grad is not None and grad.data_ptr() != value.data_ptr():
                    grad.copy_(value.view(grad.shape))
        if (optimizer := self._settings.momentum_of()) is not None:
            for gradient in bucket.gradients:
                if gradient.ready:  # A frozen one may have a gradient of an earlier step.
                    optimizer.take_momentum(gradient.parameter)

    def _take(self, raw: list[_Raw], results: list[torch.Tensor]) -> None:
        """Takes the step into account in what is kept, and writes the other results.

        A step in which some rank's gradient is NaN or infinite, as with a loss scale that is too
        high, is one that all ranks skip. It must leave no trace in what they keep.
        """
        ends = [(bucket, bucket.arrived) for bucket in self._buckets if bucket.arrived is not None]
        # The raw ones are the same on all ranks, too.
        if all(end.is_finite for _, end in ends) and all(map(_is_finite, results)):
            with self._meter.timed():
                for _, end in ends:
                    if end.keeps:
                        end.keep()
            for flight, result in zip(raw, results, strict=True):
                self._add_momentum(flight.gradient, result)
            self._step += 1
        for bucket, end in ends:
            if end.keeps:
                self._write(bucket)
            self._meter.count(bucket.exchange.raw_bytes, end.wire_bytes)
        with torch.no_grad():
            for flight, result in zip(raw, results, strict=True):
                flight.gradient.expect_unchanged().copy_(result)

    def _add_momentum(self, gradient: Gradient, result: torch.Tensor) -> None:
        """Some codecs have a momentum inside, so the optimizer has none for what travels raw."""
        codec = self._compression_of(gradient)
        momentum = codec.own_momentum if isinstance(codec, Codec) else None
        if momentum is None or result.is_sparse or not result.is_floating_point():
            return
        names = [gradient.name]
        is_double = result.dtype == torch.float64
        dtype = torch.float64 if is_double else torch.float32
        (state,) = self.residuals.tensors("momentum", names, [result.numel()], dtype)
        (factor,) = self.residuals.factors(names)
        state.mul_(momentum * factor).add_(result.detach().to("cpu", dtype).reshape(-1))
        result.copy_(state.view(result.shape))
        self.residuals.kept(names)

    def _plan_new(self) -> None:
        """Gives a bucket to each gradient that has none yet; frozen ones get one when thawed."""
        if not self._unplanned:
            return
        order = {id(gradient): number for number, gradient in enumerate(self._gradients)}
        # As backward goes.
        new = sorted(self._unplanned, key=lambda gradient: order[id(gradient)], reverse=True)
        self._agree_on_layouts(new)
        open_buckets: dict[Codec, list[Gradient]] = {}
        buckets: list[_Bucket] = []
        raw: list[Gradient] = []
        for gradient in new:
            codec, why_raw = self._codec_of(gradient)
            if codec is None:
                self._sent_raw[gradient.name] = why_raw
                raw.append(gradient)
                continue
            members = open_buckets.setdefault(codec, [])
            held = sum(member.parameter.numel() for member in members)
            if members and (held + gradient.parameter.numel()) * 4 > BUCKET_BYTES:
                buckets.append(self._bucket_with(codec, members))
                members = open_buckets[codec] = []
            members.append(gradient)
        buckets += [self._bucket_with(codec, members) for codec, members in open_buckets.items()]
        # All is planned or nothing: making a bucket calls codecs of users.
        self._unplanned.clear()
        self._planned.update(map(id, new))
        self._buckets += buckets
        for bucket in buckets:
            self._bucket_of.update((id(gradient), bucket) for gradient in bucket.gradients)
            if not self._is_encoded(bucket):
                raw += bucket.gradients
        for gradient in raw:
            self._start_raw(gradient)

    def _agree_on_layouts(self, gradients: list[Gradient]) -> None:
        """A gradient is sparse on all ranks if it is on one; others may not have used its layer."""
        held = [gradient.reduced for gradient in gradients]
        own = [grad.sparse_dim() if grad is not None and grad.is_sparse else 0 for grad in held]
        agreed = allreduce(
            torch.tensor(own, dtype=torch.int32, device="cpu"),
            op=Max,
            name=f"codec.layouts.{gradients[0].name}",
            process_set=self._settings.process_set,
        )
        for gradient, sparse_dims in zip(gradients, agreed.tolist(), strict=True):
            gradient.sparse_dims = sparse_dims
            _bring_into_layout(gradient)

    def _bucket_with(self, codec: Codec, gradients: list[Gradient]) -> _Bucket:
        settings = self._settings
        places = settings.places
        if codec.force:
            places = Places.apart(places.size, places.rank)
        plan = BucketPlan(
            name=f"codec.{gradients[0].name}",
            names=[gradient.name for gradient in gradients],
            shapes=[tuple(gradient.parameter.shape) for gradient in gradients],
            codec=codec,
            places=places,
            process_set=settings.process_set,
            residuals=self.residuals,
            scale=settings.scale,
        )
        return _Bucket(plan, EXCHANGES[codec.way](plan), list(gradients), len(gradients))

    def _compression_of(self, gradient: Gradient) -> Codec | CompressorLike:
        patterns = self._settings.by_pattern
        owner = "DistributedOptimizer: compression"
        return patterns[checked_match(owner, gradient.name, patterns)]

    def _codec_of(self, gradient: Gradient) -> tuple[Codec | None, str]:
        """What encodes it, or why it travels as it is."""
        codec = self._compression_of(gradient)
        parameter = gradient.parameter
        if not isinstance(codec, Codec):
            return None, getattr(codec, "__name__", str(codec))
        if gradient.sparse_dims:
            return None, "sparse"
        if self._settings.places.is_one_host and not codec.force:
            return None, "all ranks are on one host"
        if parameter.numel() < LEAST_VALUES:
            return None, "small"
        if not codec.takes(tuple(parameter.shape)):
            return None, f"shapes that {codec.name} does not make smaller"
        if parameter.dtype not in (torch.float32, torch.float16, torch.bfloat16):
            return None, str(parameter.dtype)
        return codec, ""

    @property
    def has_begun(self) -> bool:
        """Whether a step has been taken, so that there are buckets."""
        return bool(self._planned)

    def describe(self) -> tuple[str, str]:
        """What travels how, for mydist.explain()."""
        encoded = sum(len(bucket.gradients) for bucket in self._buckets)
        codecs = sorted({str(bucket.plan.codec) for bucket in self._buckets})
        what = f"{_counted(encoded, 'gradient')} in {_counted(len(self._buckets), 'bucket')}"
        choice = f"{', '.join(codecs)} for {what}" if codecs else "no gradient is encoded"
        counts: dict[str, int] = {}
        for why in self._sent_raw.values():
            counts[why] = counts.get(why, 0) + 1
        reasons = [f"{count} raw: {why}" for why, count in sorted(counts.items())]
        hosts = len(self._settings.places.members)
        adds_up_first = any(bucket.exchange.adds_up_first for bucket in self._buckets)
        if adds_up_first and self._settings.places.adds_up and hosts > 1:
            reasons.insert(0, "ranks of a host add up exact values first")
        if any(not bucket.exchange.is_fixed for bucket in self._buckets):
            reasons.append("payloads vary in size, so the ranks negotiate in each step")
        if measured := self._meter.text():
            reasons.append(measured)
        return choice, "; ".join(reasons)

    def state_dict(self) -> dict[str, Any]:
        """What this rank keeps: the steps that counted, and the residuals."""
        return {"step": self._step, "residuals": self.residuals.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes what state_dict() of the same rank gave."""
        self._step = state["step"]
        self.residuals.load_state_dict(state["residuals"])

    def drop_state(self) -> bool:
        """Forgets what this rank keeps. Returns whether its codecs keep anything."""
        self.residuals.drop()
        choices = self._settings.by_pattern.values()
        return any(isinstance(codec, Codec) and codec.has_state for codec in choices)


def _is_finite(result: torch.Tensor) -> bool:
    values = result._values() if result.is_sparse else result
    return bool(values.isfinite().all())


def _bring_into_layout(gradient: Gradient) -> None:
    """Sparse or dense as ranks have agreed, since both do not add up."""
    assert gradient.reduced is not None
    if gradient.reduced.is_sparse == (gradient.sparse_dims > 0):
        return
    values = gradient.order_behind()
    gradient.replace(
        values.to_sparse(gradient.sparse_dims) if gradient.sparse_dims else values.to_dense()
    )


def _flat_values(gradient: Gradient) -> torch.Tensor:
    """float32 on the CPU, flat; a view of the gradient if that is so already. Zeros if frozen."""
    if not gradient.ready:
        return torch.zeros(gradient.parameter.numel(), dtype=torch.float32, device="cpu")
    values = gradient.order_behind()
    return values.to("cpu", torch.float32).contiguous().view(-1)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
