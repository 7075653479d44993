"""dgc: deep gradient compression, a momentum of which the largest values travel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from .codec import Codec

__all__ = ["Dgc"]

# Of the values, in the equal parts of the warm-up; see the paper, section 3.3.
_WARMUP_RATIOS = (0.25, 0.0625, 0.015625, 0.004)


@dataclass(frozen=True)
class Dgc(Codec):
    """Deep gradient compression (Lin et al., arXiv:1712.01887).

    The momentum is inside, so the wrapped optimizer has to be SGD with momentum 0: u ← m·u + g,
    v ← v + u. The values of v that are largest in magnitude travel as with `topk`; u and v are 0
    there. A gradient that travels as it is gets the same momentum after the sum. Nesterov momentum
    and the paper's clipping are not included.

    Args:
        ratio: the share of the values that travel, above 0 and up to 1.
        momentum: m, 0 or above and below 1.
        warmup_steps: over so many first steps the share falls: 25 %, 6.25 %, 1.5625 %, 0.4 %, each
            for a quarter of them. No share is smaller than `ratio`.
        force: encode also between ranks of one host.

    Raises:
        ValueError: an argument is out of range.
    """

    name: ClassVar[str] = "dgc"
    way: ClassVar[str] = "gathers"
    ratio: float = 0.001
    momentum: float = 0.9
    warmup_steps: int = 0
    force: bool = False

    def __post_init__(self) -> None:
        self._check_number("ratio", 0, 1)
        momentum = self.momentum
        is_number = isinstance(momentum, (int, float)) and not isinstance(momentum, bool)
        if not is_number or not 0 <= momentum < 1:
            raise self._refuse("momentum", "a number of at least 0 and below 1")
        self._check_count("warmup_steps", 0, 1 << 31)

    @property
    def own_momentum(self) -> float | None:
        return self.momentum

    def at_step(self, step: int) -> Dgc:
        if step >= self.warmup_steps:
            return replace(self, warmup_steps=0) if self.warmup_steps else self
        part = step * len(_WARMUP_RATIOS) // self.warmup_steps
        return replace(self, ratio=max(self.ratio, _WARMUP_RATIOS[part]), warmup_steps=0)
