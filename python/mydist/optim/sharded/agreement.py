"""Agreement: what the ranks of a sharded optimizer must know of each other in each step.

Every rank waits for the slices of all others. So a rank that cannot go on says so, and all raise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...collectives import allreduce
from ...collectives.objects import allgather_object
from ...errors import MydistError
from ...job.error_text import ranks_text, text_of
from ...job.topology import rank
from ...reduce_op import Sum

if TYPE_CHECKING:
    from .slices import Slices

# What a rank says of itself, added up. Of a rank that has called mydist.join() there is 0.
_HERE, _HAS_MORE, _HAS_FAILED = 1, 2, 4


class Agreement:
    """Of one optimizer. All calls come from the thread that trains, on all ranks in one order."""

    def __init__(self, slices: Slices) -> None:
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
        said = self._hear("ready", error, _HAS_MORE if has_more else 0)
        gone = [r for r, of_rank in zip(self._process_set.ranks, said, strict=True) if not of_rank]
        if gone:
            raise MydistError(
                f"{ranks_text(gone)} called join(), and the slices of a rank that has "
                "joined get no more updates. A sharded optimizer needs the same number of steps on "
                "every rank: use a sampler with drop_last=True"
            )
        self._expect_no_error("cannot take the step", error, said)
        return any(of_rank & _HAS_MORE for of_rank in said)

    def on_update(self, error: Exception | None) -> str:
        """Empty, or which ranks could not update their slices, and why. Collective."""
        said = self._hear("updated", error)
        return self._errors("could not update its slices", error) if _has_failed(said) else ""

    def _expect_no_error(self, what: str, error: Exception | None, said: Sequence[int]) -> None:
        if _has_failed(said):
            text = self._errors(what, error)
            raise error or MydistError(text)

    def _hear(self, what: str, error: Exception | None, extra: int = 0) -> list[int]:
        """What each rank of the set says."""
        own = _HERE | extra | (_HAS_FAILED if error is not None else 0)
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
