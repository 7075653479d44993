"""Agreement: what the ranks of a sharded optimizer must know of each other in each step.

Every rank waits for the slices of all others. So a rank that cannot go on says so, and all raise.
A rank without data says so too, and does with its slices what the others tell it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...collectives import allreduce
from ...collectives.objects import allgather_object, broadcast_object
from ...errors import MydistError
from ...job.error_text import ranks_text, text_of
from ...job.topology import rank
from ...reduce_op import Sum

if TYPE_CHECKING:
    from .slices import Slices

# What a rank says of itself, added up. Of a rank that has called mydist.join() there is 0.
_HERE, _HAS_MORE, _HAS_FAILED, _HAS_JOINED = 1, 2, 4, 8

# What the others do with reduced gradients. They end a step by all but the first.
CLIP, UPDATE, SKIP, REFUSE = "clip", "update", "skip", "refuse"


class Agreement:
    """Of one optimizer. All calls come from the thread that trains, on all ranks in one order.

    Attributes:
        has_joined: whether this rank has no more data.
        is_over: whether all ranks have joined.
        leader: the lowest global rank that has data, while another rank has joined; else None.
    """

    def __init__(self, slices: Slices) -> None:
        self.has_joined = self.is_over = False
        self.leader: int | None = None
        self._waited_for = False  # Whether ranks that have joined wait for the end of a step.
        self._slices = slices
        self._process_set = slices.process_set

    def on_beginning(self, error: Exception | None, has_more: bool = False) -> bool:
        """Whether any rank has more gradients. Collective; before anything is updated.

        Args:
            error: why this rank cannot take the step.

        Raises:
            MydistError: a rank has left the training by mydist.join(), or has an error; it raises
                its own.
        """
        said = self._said("ready", error, _HAS_MORE if has_more else 0)
        ranks = self._process_set.ranks
        gone = [r for r, of_rank in zip(ranks, said, strict=True) if not of_rank]
        if gone:
            raise MydistError(
                f"{ranks_text(gone)} called mydist.join(), and the slices of a rank that has "
                "left the training get no more updates. Call join() of the sharded optimizer in "
                "its place"
            )
        self._expect_no_error("cannot take the step", error, said)
        active = [r for r, of_rank in zip(ranks, said, strict=True) if not of_rank & _HAS_JOINED]
        self.is_over = not active
        self.leader = active[0] if 0 < len(active) < len(ranks) else None
        self._waited_for = self.leader is not None and not self.has_joined
        return any(of_rank & _HAS_MORE for of_rank in said)

    def on_update(self, error: Exception | None) -> str:
        """Empty, or which ranks could not update their slices, and why. Collective."""
        said = self._said("updated", error)
        return self._errors("could not update its slices", error) if _has_failed(said) else ""

    def tell(self, call: str, *arguments: Any) -> None:
        """Ranks that have joined, if any, hear what the others do. Called by all others alike."""
        if not self._waited_for:
            return
        self._waited_for = call == CLIP
        self._broadcast((call, *arguments))

    def hear(self) -> tuple[Any, ...]:
        """What the others do. Called by a rank that has joined."""
        told: tuple[Any, ...] = self._broadcast(None)
        return told

    def refuse(self, what: str) -> None:
        """Raises ValueError on all ranks while one has joined."""
        if self._waited_for:
            text = f"{what} does not work in stage 2 while a rank has joined; use stage=1"
            self.tell(REFUSE, text)
            raise ValueError(text)

    def _broadcast(self, told: Any) -> Any:
        assert self.leader is not None
        return broadcast_object(told, self.leader, self._name("told"), self._process_set)

    def _expect_no_error(self, what: str, error: Exception | None, said: Sequence[int]) -> None:
        if _has_failed(said):
            text = self._errors(what, error)
            raise error or MydistError(text)

    def _said(self, what: str, error: Exception | None, extra: int = 0) -> list[int]:
        """By each rank of the set."""
        own = _HERE | extra | (_HAS_FAILED if error is not None else 0)
        own |= _HAS_JOINED if self.has_joined else 0
        if self._process_set.size() == 1:
            return [own]
        said = torch.zeros(self._process_set.size(), dtype=torch.uint8, device="cpu")
        said[self._process_set.rank()] = own
        told: list[int] = allreduce(
            said, op=Sum, name=self._name(what), process_set=self._process_set
        ).tolist()
        return told

    def _errors(self, what: str, error: Exception | None) -> str:
        own = None if error is None else f"rank {rank()} {what}: {text_of(error)}"
        texts = allgather_object(own, self._name("errors"), self._process_set)
        return "; ".join(text for text in texts if text is not None)

    def _name(self, what: str) -> str:
        return f"sharded.{what}{self._slices.label}"


def _has_failed(said: Sequence[int]) -> bool:
    return any(of_rank & _HAS_FAILED for of_rank in said)
