"""EncodedSum: adds up what a strategy sends, with a codec."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ...codecs.codec import Codec
from ...collectives import synchronize
from ...job.process_set import ProcessSet
from .choice import places_of
from .exchange import Arrived, BucketPlan, Exchange, Stages
from .exchanges import EXCHANGES
from .meter import Meter
from .path import LEAST_VALUES
from .places import Places
from .residuals import Residuals


class EncodedSum:
    """The sums of one job of a strategy. All calls come from the thread that trains."""

    def __init__(self, codec: Codec, process_set: ProcessSet) -> None:
        self._codec = codec
        self._process_set = process_set
        places = places_of(process_set)
        self._places = Places.apart(places.size, places.rank) if codec.force else places
        self._residuals = Residuals(lambda _: (None, None))
        self._exchanges: dict[Any, Exchange] = {}  # By name and shapes of what is summed.
        self._rounds = 0
        self._meter = Meter()

    def takes(self, tensor: torch.Tensor) -> bool:
        """Whether this tensor is encoded; others travel as they are."""
        return (
            not self._places.is_one_host
            and tensor.dtype == torch.float32
            and tensor.device.type == "cpu"
            and tensor.is_contiguous()
            and tensor.numel() >= LEAST_VALUES
            and self._codec.takes(tuple(tensor.shape))
        )

    def start(self, tensors: Sequence[torch.Tensor], name: str, kept_as: str) -> Callable[[], None]:
        """Starts to add up tensors that it takes, in place. The function waits for the sums.

        Args:
            name: of the collectives.
            kept_as: names what is kept; the same when training is resumed.
        """
        key = name, tuple(tuple(tensor.shape) for tensor in tensors)
        exchange = self._exchanges.get(key)
        if exchange is None:
            plan = BucketPlan(
                name=f"codec.{name}",
                names=[f"{kept_as}.{index}" for index in range(len(tensors))],
                shapes=key[1],
                codec=self._codec,
                places=self._places,
                process_set=self._process_set,
                residuals=self._residuals,
                scale=1.0,
            )
            exchange = self._exchanges[key] = EXCHANGES[self._codec.way](plan)
        stages = exchange.run([tensor.detach().view(-1) for tensor in tensors], self._rounds)
        self._rounds += 1
        with self._meter.timed():
            handle = next(stages)

        def wait() -> None:
            arrived = self._end_of(stages, handle)
            with self._meter.timed():
                if arrived.keeps and arrived.is_finite:
                    arrived.keep()
                arrived.write()
            self._meter.count(exchange.raw_bytes, arrived.wire_bytes)

        return wait

    def state_dict(self) -> dict[str, Any]:
        """See Keeper."""
        return {"step": self._rounds, "residuals": self._residuals.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See Keeper."""
        self._rounds = state["step"]
        self._residuals.load_state_dict(state["residuals"])

    def drop_state(self) -> bool:
        """See Keeper."""
        self._residuals.drop()
        return self._codec.has_state

    def _end_of(self, stages: Stages, handle: int) -> Arrived:
        while True:
            result = synchronize(handle)
            try:
                with self._meter.timed():
                    handle = stages.send(result)
            except StopIteration as end:
                arrived: Arrived = end.value
                return arrived
