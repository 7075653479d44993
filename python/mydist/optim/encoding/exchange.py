"""An exchange: how the gradients of a bucket are summed over the ranks with a codec."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from ...codecs.codec import Codec
from ...job.process_set import ProcessSet
from .places import Places
from .residuals import Residuals
from .slices import Cut


@dataclass(frozen=True)
class BucketPlan:
    """The gradients that travel together.

    Attributes:
        name: of the collectives, equal on all ranks.
        names: of the gradients.
        shapes: theirs.
        scale: what the sum over the ranks is multiplied by.
    """

    name: str
    names: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    codec: Codec
    places: Places
    process_set: ProcessSet
    residuals: Residuals
    scale: float

    @property
    def lengths(self) -> list[int]:
        """Values of each gradient."""
        return [math.prod(shape) for shape in self.shapes]

    def keys(self, step: int, cuts: Sequence[Cut], role: str) -> list[int]:
        """What a codec draws from: by cut, the number of its gradient, this step, rank and role."""
        seed = getattr(self.codec, "seed", 0)
        keys = [key_of(seed, name, step, self.places.rank, role) for name in self.names]
        return [keys[cut.tensor] for cut in cuts]

    def states(
        self, role: str, cuts: Sequence[Cut], floats: int
    ) -> tuple[list[torch.Tensor], list[float]]:
        """The states of cuts, views of those of whole gradients, and the factors of their units.

        Args:
            floats: of state for each value; 0: nothing is kept.
        """
        if not floats:
            return [], []
        whole = self.residuals.tensors(role, self.names, [n * floats for n in self.lengths])
        factors = self.residuals.factors(self.names)
        states = [
            whole[cut.tensor][cut.begin * floats : (cut.begin + cut.count) * floats] for cut in cuts
        ]
        return states, [factors[cut.tensor] for cut in cuts]


def key_of(seed: int, name: str, step: int, rank: int, role: str = "") -> int:
    """A number of 64 bits that only these make."""
    text = f"{seed}\0{name}\0{step}\0{rank}\0{role}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


@dataclass(frozen=True)
class Arrived:
    """The end of an exchange. So far no gradient and no residual is changed.

    Attributes:
        is_finite: whether the gradients of all ranks were; the same on all ranks.
        keeps: whether anything is kept, for which the gradients must stay until `keep` is called.
        keep: takes the step into account in what this rank keeps.
        write: puts the sums in the place of the gradients.
        wire_bytes: sent by this rank.
    """

    is_finite: bool
    keeps: bool
    keep: Callable[[], None]
    write: Callable[[], None]
    wire_bytes: int


# Yields handles of collectives, and is sent their results.
Stages = Generator[int, Any, Arrived]


class Exchange(Protocol):
    """Made once for each bucket. All ranks make the same; calls come from the thread that trains.

    Attributes:
        is_fixed: whether every step sends as many bytes, so that the schedule stays frozen.
        adds_up_first: whether ranks of a host add up exact values before anything is encoded.
        raw_bytes: what this rank would send in a step without a codec.
    """

    is_fixed: bool
    adds_up_first: bool
    raw_bytes: int

    def run(self, values: list[torch.Tensor], step: int) -> Stages:
        """Starts to sum up the values: flat float32 tensors on the CPU."""
