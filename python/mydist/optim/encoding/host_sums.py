"""HostSums: what the ranks of a host add up before anything is encoded, exactly as it is."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch

from ...collectives import alltoall_async
from .exchange import BucketPlan
from .slices import Cut, views


class HostSums:
    """The sums of the slices that this rank sums for its host."""

    def __init__(self, plan: BucketPlan, slices: list[list[Cut]]) -> None:
        self._plan = plan
        places = plan.places
        self._cuts_of = {
            rank: [cut for owner in places.summed_by(rank) for cut in slices[owner]]
            for rank in places.neighbours
        }

    def run(self, values: list[torch.Tensor]) -> Generator[int, Any, dict[Cut, torch.Tensor]]:
        """The sums by their cuts; views of the values where this rank is alone on its host."""
        plan, places = self._plan, self._plan.places
        own = self._cuts_of[places.rank]
        if not places.adds_up:
            return dict(zip(own, views(values, own), strict=True))
        sent = [part for cuts in self._cuts_of.values() for part in views(values, cuts)]
        splits = [0] * places.size
        for rank, cuts in self._cuts_of.items():
            splits[rank] = sum(cut.count for cut in cuts)
        received, _ = yield alltoall_async(
            torch.cat(sent) if sent else torch.empty(0, dtype=torch.float32, device="cpu"),
            splits=splits,
            name=f"{plan.name}.host",
            process_set=plan.process_set,
        )
        rows = received.view(len(places.neighbours), -1)
        total = rows[0].clone()
        for row in rows[1:]:  # In rank order: the same bits in each run.
            total.add_(row)
        return dict(zip(own, total.split([cut.count for cut in own]), strict=True))
