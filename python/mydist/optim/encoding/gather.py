"""Gather: all ranks get all payloads, for codecs that send few of the values.

A payload is small, and the sum of several is not as small, so an owner of a slice would send more
than it got. A rank that is alone on its host encodes whole gradients. Others encode the slices that
they sum for their host. A rank sends its payload to every other host, so the traffic grows with
their number.
"""

from __future__ import annotations

import math

import torch

from ...codecs.codec import Codec, CodecCore
from ...collectives import allgather_async
from .exchange import Arrived, BucketPlan, Stages
from .host_sums import HostSums
from .raw_bytes import bytes_of_sum
from .slices import Cut, as_table, packed, slices_of


class Gather:
    """See Exchange."""

    adds_up_first = True

    def __init__(self, plan: BucketPlan) -> None:
        self._plan = plan
        self._cores: dict[Codec, CodecCore] = {}
        core = self._core_at(0)
        self.is_fixed = core.is_fixed and plan.codec.at_step(0) == plan.codec
        places = plan.places
        self.raw_bytes = bytes_of_sum(places, plan.lengths)
        slices = slices_of(plan.lengths, places.size, core.block)
        self._sums = HostSums(plan, slices)
        whole = [Cut(index, 0, length) for index, length in enumerate(plan.lengths)]
        self._is_alone = len(places.neighbours) == 1
        cuts_of = [
            whole
            if len(places.members[places.hosts[rank]]) == 1
            else [cut for owner in places.summed_by(rank) for cut in slices[owner]]
            for rank in range(places.size)
        ]
        self._own = cuts_of[places.rank]
        self._own_table = as_table(packed(self._own))
        self._all = as_table(cut for cuts in cuts_of for cut in cuts)
        self._all_counts = self._all[:, 2].contiguous()

    def run(self, values: list[torch.Tensor], step: int) -> Stages:
        """See Exchange."""
        plan, core = self._plan, self._core_at(step)
        sums = yield from self._sums.run(values)
        own = values if self._is_alone else [sums[cut] for cut in self._own]
        states, factors = plan.states("sent", self._own, core.state_floats)
        keys = plan.keys(step, self._own, "sent")
        payload = torch.empty(
            sum(core.max_bytes(cut.count) for cut in self._own), dtype=torch.uint8, device="cpu"
        )
        sizes, _ = core.encode(own, self._own_table, states, factors, keys, payload)
        payload = payload[: sum(sizes)]
        gathered = yield allgather_async(
            payload, name=f"{plan.name}.payloads", process_set=plan.process_set
        )

        def keep() -> None:
            core.keep(own, self._own_table, states, factors, payload)
            plan.residuals.kept(plan.names)

        def write() -> None:
            for value in values:
                value.zero_()
            # A power of two rounds nothing, so each value may be multiplied before the sum.
            is_exact = math.frexp(plan.scale)[0] == 0.5
            core.decode_add(gathered, self._all, plan.scale if is_exact else 1.0, values)
            if not is_exact:
                for value in values:
                    value.mul_(plan.scale)

        wire = sum(sizes) * (len(plan.places.members) - 1)
        is_finite = core.is_finite(gathered, self._all_counts)
        return Arrived(is_finite, core.state_floats > 0, keep, write, wire)

    def _core_at(self, step: int) -> CodecCore:
        codec = self._plan.codec.at_step(step)
        if codec not in self._cores:
            self._cores[codec] = codec.core()
        return self._cores[codec]
