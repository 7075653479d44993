"""TwoPhase: sums up slices at their owners, and gathers the sums; for every codec.

The owner of a slice gets it from one sender of each other host, adds up, encodes once more and
gives it to all. Every rank decodes the same bytes, so all have the same bits. A rank sends and
receives about 2 × payload × (hosts − 1) ÷ hosts, however many there are; this is what 1-bit Adam
(Tang et al., arXiv:2102.02888) does.
"""

from __future__ import annotations

from typing import Any

import torch

from ...collectives import allgather_async, alltoall_async
from .exchange import Arrived, BucketPlan, Stages
from .host_sums import HostSums
from .raw_bytes import bytes_of_slices
from .slices import Cut, as_table, packed, slices_of


class TwoPhase:
    """See Exchange."""

    adds_up_first = True

    def __init__(self, plan: BucketPlan) -> None:
        self._plan = plan
        self._core = plan.codec.core()
        self.is_fixed = self._core.is_fixed
        places = plan.places
        self._slices = slices_of(plan.lengths, places.size, self._core.block)
        self._sums = HostSums(plan, self._slices)
        self._sent = [cut for owner in places.sent_by(places.rank) for cut in self._slices[owner]]
        self._own = self._slices[places.rank]
        self.raw_bytes = bytes_of_slices(places, self._slices)
        every = [cut for slice_ in self._slices for cut in slice_]
        self._all = as_table(every)
        self._all_counts = self._all[:, 2].contiguous()
        self._sent_table, self._own_table = (
            as_table(packed(self._sent)),
            as_table(packed(self._own)),
        )
        self._own_names = [plan.names[cut.tensor] for cut in self._own]
        # Used in every step: the kernel clears new memory, which takes longer than to encode.
        self._sent_room = self._room(self._sent)
        self._own_room = self._room(self._own)
        self._total = torch.empty(
            sum(cut.count for cut in self._own), dtype=torch.float32, device="cpu"
        )

    def _room(self, cuts: list[Cut]) -> torch.Tensor:
        """For the payloads of the cuts."""
        most = sum(self._core.max_bytes(cut.count) for cut in cuts)
        return torch.empty(most, dtype=torch.uint8, device="cpu")

    def run(self, values: list[torch.Tensor], step: int) -> Stages:
        """See Exchange."""
        plan, core = self._plan, self._core
        sums = yield from self._sums.run(values)
        sent_values = [sums[cut] for cut in self._sent]
        states, factors = plan.states("sent", self._sent, core.state_floats)
        keys = plan.keys(step, self._sent, "sent")
        sent = self._sent_room
        sizes, _ = core.encode(sent_values, self._sent_table, states, factors, keys, sent)
        received = yield self._send(sent, sizes)
        own = [sums[cut] for cut in self._own]
        total = self._add_up(received, self._vote(own, step) if plan.codec.is_vote else own)
        own_states, own_factors = self._own_states()
        own_keys = plan.keys(step, self._own, "owned")
        own_sizes, _ = core.encode(
            total, self._own_table, own_states, own_factors, own_keys, self._own_room
        )
        owned = self._own_room[: sum(own_sizes)]
        gathered = yield allgather_async(
            owned, name=f"{plan.name}.gather", process_set=plan.process_set
        )

        def keep() -> None:
            core.keep(sent_values, self._sent_table, states, factors, sent)
            core.keep(total, self._own_table, own_states, own_factors, owned)
            plan.residuals.kept(plan.names)

        def write() -> None:
            for value in values:
                value.zero_()
            core.decode_add(gathered, self._all, 1.0, values)

        hosts = len(plan.places.members)
        wire = sum(sizes) + owned.numel() * (hosts - 1)
        is_finite = core.is_finite(gathered, self._all_counts)
        return Arrived(is_finite, core.state_floats > 0, keep, write, wire)

    def _own_states(self) -> tuple[list[torch.Tensor], list[float]]:
        """Of this rank's slice. No other rank has any of it, so it is kept without the rest."""
        floats, residuals = self._core.state_floats, self._plan.residuals
        if not floats:
            return [], []
        counts = [cut.count * floats for cut in self._own]
        states = residuals.tensors("owned", self._own_names, counts)
        return states, residuals.factors(self._own_names)

    def _send(self, sent: torch.Tensor, sizes: list[int]) -> int:
        """Each owner gets the payloads of its slice. A handle."""
        places = self._plan.places
        splits = [0] * places.size
        position = iter(sizes)
        for owner in places.sent_by(places.rank):
            splits[owner] = sum(next(position) for _ in self._slices[owner])
        return alltoall_async(
            sent[: sum(sizes)],
            splits=splits,
            name=f"{self._plan.name}.slices",
            process_set=self._plan.process_set,
        )

    def _vote(self, own: list[torch.Tensor], step: int) -> list[torch.Tensor]:
        """This host's part as it would have arrived: of one vote, however large its values are."""
        core = self._core
        payloads = self._room(self._own)
        keys = self._plan.keys(step, self._own, "vote")
        core.encode(own, self._own_table, [], [], keys, payloads)
        votes = [torch.zeros_like(part) for part in own]
        core.decode_add(payloads, self._own_table, 1.0, votes)
        return votes

    def _add_up(self, received: Any, own: list[torch.Tensor]) -> list[torch.Tensor]:
        """The sums of this rank's slice over all hosts, in their order, times the scale."""
        plan = self._plan
        payloads, splits = received
        by_rank = torch.tensor_split(payloads, splits.cumsum(0)[:-1])
        counts = [cut.count for cut in self._own]
        flat = self._total.zero_()
        total = list(torch.split_with_sizes(flat, counts)) if counts else []
        for sender in plan.places.senders_to(plan.places.rank):
            if sender == plan.places.rank:
                for part, value in zip(total, own, strict=True):
                    part.add_(value)
            else:
                self._core.decode_add(by_rank[sender], self._own_table, 1.0, total)
        flat.mul_(plan.scale)
        return total
