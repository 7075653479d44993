"""What ranks would send without a codec. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from .places import Places
from .slices import Cut, slices_of


def bytes_of_sum(places: Places, lengths: Sequence[int]) -> int:
    """Of float32 tensors of these lengths: what this rank sends to other hosts to add them up."""
    return bytes_of_slices(places, slices_of(lengths, places.size, 1))


def bytes_of_slices(places: Places, slices: Sequence[Sequence[Cut]]) -> int:
    """The same of tensors that are cut; by owner, the cuts."""
    hosts = len(places.members)
    sent = sum(cut.count for owner in places.sent_by(places.rank) for cut in slices[owner])
    owned = sum(cut.count for cut in slices[places.rank]) if hosts > 1 else 0
    return 4 * (sent + owned * (hosts - 1))
