"""RankStates: the state that differs between ranks, gathered on the root to be saved there.

Most objects have the same state on every rank. An optimizer whose steps stay local does not: it has
`rank_state_dict()` and `load_rank_state_dict()`, too.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..collectives import allgather, gather, scatter
from ..job.process_set import ProcessSet


class RankStates:
    """Those of some objects by name, for the ranks of a process set."""

    def __init__(self, objects: Mapping[str, Any], process_set: ProcessSet) -> None:
        self._objects = {
            name: value for name, value in objects.items() if hasattr(value, "rank_state_dict")
        }
        self._process_set = process_set

    def __bool__(self) -> bool:
        """Whether any object has such a state; the same on all ranks."""
        return bool(self._objects)

    def gather(self) -> list[torch.Tensor]:
        """The states of all ranks by rank, as bytes, on the root; nothing elsewhere. Collective."""
        if not self:
            return []
        stream = io.BytesIO()
        torch.save({n: value.rank_state_dict() for n, value in self._objects.items()}, stream)
        own = torch.frombuffer(bytearray(stream.getvalue()), dtype=torch.uint8)
        length = torch.tensor([own.numel()], dtype=torch.int64, device="cpu")
        options: dict[str, Any] = {"process_set": self._process_set}
        lengths = allgather(length, name="checkpoint.rank_state_lengths", **options)
        whole = gather(own, self._process_set.ranks[0], name="checkpoint.rank_states", **options)
        return (
            [] if whole is None else [part.clone() for part in torch.split(whole, lengths.tolist())]
        )

    def scatter(self, states: Sequence[torch.Tensor]) -> None:
        """Every rank loads its own of the states that the root has. Collective."""
        whole = torch.cat([torch.empty(0, dtype=torch.uint8, device="cpu"), *states])
        own = scatter(
            whole,
            [state.numel() for state in states] or None,
            self._process_set.ranks[0],
            name="checkpoint.rank_states.back",
            process_set=self._process_set,
        )
        saved = torch.load(io.BytesIO(own.numpy().tobytes()), map_location="cpu", weights_only=True)
        for name, value in self._objects.items():
            if name in saved:
                value.load_rank_state_dict(saved[name])

    def drop(self) -> list[str]:
        """No rank has a state to load: objects keep what is the same on all ranks.

        Returns sentences about what is lost by that; the same on all ranks.
        """
        every = [value.load_rank_state_dict(None) for value in self._objects.values()]
        return list(dict.fromkeys(sentence for lost in every for sentence in lost))
