"""Codec: how gradients become fewer bytes, as an object with arguments.

What a codec is, is here; who sends what to whom, and what is kept from step to step, is in
mydist.optim.encoding.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any, ClassVar, Protocol, cast

import torch

from .. import _C

__all__ = ["WAYS_WITH_CORE", "Codec", "CodecCore"]

# Payloads travel, which the core of a codec makes; in other ways what is sent is added up.
WAYS_WITH_CORE = ("slices", "gathers")


class CodecCore(Protocol):
    """The work of a codec on lists of tensors: `_C.GradientCodec`, which _C.pyi describes."""

    @property
    def block(self) -> int:
        """Ranges of a tensor are cut at its multiples."""

    @property
    def is_fixed(self) -> bool:
        """Whether every payload has max_bytes(count)."""

    @property
    def state_floats(self) -> int:
        """State for each value; 1 is a residual."""

    def max_bytes(self, count: int) -> int:
        """Of a payload of so many values."""

    def encode(
        self,
        values: list[torch.Tensor],
        cuts: torch.Tensor,
        states: list[torch.Tensor],
        factors: list[float],
        keys: list[int],
        out: torch.Tensor,
    ) -> tuple[list[int], bool]:
        """Writes a payload for each cut; their bytes, and whether all values are finite."""

    def is_finite(self, payloads: torch.Tensor, counts: torch.Tensor) -> bool:
        """Whether all values of the payloads were finite. Raises MydistError for a corrupt one."""

    def decode_add(
        self, payloads: torch.Tensor, cuts: torch.Tensor, scale: float, out: list[torch.Tensor]
    ) -> None:
        """Adds what the payloads hold, times `scale`, to the cuts of `out`."""

    def keep(
        self,
        values: list[torch.Tensor],
        cuts: torch.Tensor,
        states: list[torch.Tensor],
        factors: list[float],
        payloads: torch.Tensor,
    ) -> None:
        """Updates the states, as these payloads were sent."""


class Codec:
    """Base of the codecs, which are frozen dataclasses: two with the same arguments are equal.

    Attributes:
        force: encode also between ranks of one host, where a codec saves nothing.
    """

    name: ClassVar[str]
    force: bool
    way: ClassVar[str] = "slices"  # How payloads travel: a row of mydist.optim.encoding.exchanges.
    # Whether an owner of a slice counts its own part as one that it is sent. Needs no state.
    is_vote: ClassVar[bool] = False

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a gradient of this shape is encoded; others travel as they are."""
        return True

    @property
    def own_momentum(self) -> float | None:
        """The momentum inside the codec; the wrapped optimizer has none then. None: there is none.

        A gradient that is not encoded gets it after the sum.
        """
        return None

    def at_step(self, step: int) -> Codec:
        """What encodes step number `step`; another one if arguments change while steps go on."""
        return self

    @property
    def has_state(self) -> bool:
        """Whether anything is kept from step to step. Ways without a core keep their own state."""
        return self.way not in WAYS_WITH_CORE or self.core().state_floats > 0

    def core(self) -> CodecCore:
        """What encodes and decodes."""
        options = {
            argument: float(getattr(self, argument))
            for argument in self._arguments()
            if argument != "force"
        }
        return _C.GradientCodec(self.name, options)

    def __str__(self) -> str:
        given = [
            f"{argument}={getattr(self, argument)!r}"
            for argument in self._arguments()
            if argument != "force" or self.force
        ]
        return f"{self.name}({', '.join(given)})"

    def _arguments(self) -> list[str]:
        return [field.name for field in fields(cast(Any, self))]

    def _refuse(self, argument: str, expected: str) -> ValueError:
        got: Any = getattr(self, argument)
        return ValueError(f"Compression.{self.name}: {argument} is {got!r}, expected {expected}")

    def _check_count(self, argument: str, least: int, most: int) -> None:
        """Raises ValueError unless the argument is an integer of this range."""
        value = getattr(self, argument)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._refuse(argument, f"an integer of {least} to {most}")

    def _check_seed(self) -> None:
        """Raises ValueError unless the seed is one that travels as an int64."""
        self._check_count("seed", 0, 2**63 - 1)

    def _check_number(self, argument: str, above: float, most: float) -> None:
        """Raises ValueError unless the argument is a number above the one and up to the other."""
        value = getattr(self, argument)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not above < value <= most:
            raise self._refuse(argument, f"a number above {above:g} and up to {most:g}")
