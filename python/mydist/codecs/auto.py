"""auto: the job measures its link and its processors, and takes what is fastest."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch

from .codec import Codec, CodecCore
from .cost import RAW, Cost, cost_of_cast, cost_of_codec
from .int8 import Int8

__all__ = ["Auto", "Choice", "choose", "measure_candidates"]

# Of what may be taken, none of it biased: how far a value may be off when it is encoded once. int8:
# half a step of 1 ÷ 127 of its block's largest value; bf16: half a unit of 8 bits of mantissa.
ERRORS = {"none": 0.0, "bf16": 2.0**-9, "int8": 1 / 254}
# What is not sooner by such a share is not worth its error.
_LEAST_GAIN = 0.1
_MEASURED_VALUES = 1 << 22  # 16 MiB, more than a cache holds, as buckets are.
_ROUNDS = 5


@dataclass(frozen=True)
class Auto(Codec):
    """Measures at the first step, and takes `none`, `bf16` or `int8()`, whichever is fastest.

    All ranks of a job take the same. Where they are all on one host, that is `none`.
    `mydist.explain()` tells the choice and its figures. Training then goes on as if it had been
    given; only the first step waits for the measurement and does not overlap with backward.

    Args:
        max_error: what may be taken: at most so large an error when a value is encoded once, as a
            share of the value for bf16 (1/512), or of its block's largest for int8 (1/254).
        force: measure and encode also between ranks of one host.

    Raises:
        ValueError: `max_error` is not above 0 and up to 1.
    """

    name: ClassVar[str] = "auto"
    way: ClassVar[str] = "auto"
    max_error: float = 0.01
    force: bool = False

    def __post_init__(self) -> None:
        self._check_number("max_error", 0.0, 1.0)

    @property
    def has_state(self) -> bool:
        """Nothing that may be taken has any."""
        return False

    def core(self) -> CodecCore:
        """There is none before the choice."""
        raise TypeError(f"{self} encodes nothing; it chooses what does")


@dataclass(frozen=True)
class Choice:
    """What auto takes, and why.

    Attributes:
        name: "none", "bf16" or "int8".
        gbits: the speed of a host's link.
        hosts: how many there are.
        times: by name, ms to sum up an MB of gradients.
        left_out: what has too large an error.
    """

    name: str
    gbits: float
    hosts: int
    times: Mapping[str, float]
    left_out: tuple[str, ...]

    def reason(self) -> str:
        """The figures, for mydist.explain()."""
        times = ", ".join(f"{name} {ms:.3g}" for name, ms in self.times.items())
        text = f"{self.hosts} hosts with links of {self.gbits:.2g} Gbit/s: {times} ms per MB"
        errors = [f"{name} has an error of {ERRORS[name]:.2g}" for name in self.left_out]
        return "; ".join([text, *errors])


def choose(costs: Mapping[str, Cost], gbits: float, hosts: int, max_error: float) -> Choice:
    """What is fastest with this link and these costs, those of what measure_candidates() gives.

    Pure, so that ranks with the same figures take the same.
    """
    allowed = {"none": RAW, **costs}
    left_out = tuple(name for name in allowed if ERRORS[name] > max_error)
    times = {
        name: cost.sum_ms(hosts, gbits) for name, cost in allowed.items() if name not in left_out
    }
    best = min(times, key=lambda name: times[name])
    if times[best] > (1 - _LEAST_GAIN) * times["none"]:
        best = "none"
    return Choice(best, gbits, hosts, times, left_out)


def measure_candidates() -> dict[str, Cost]:
    """Costs on the calling thread, of a large bucket."""
    values = torch.linspace(-1.0, 1.0, _MEASURED_VALUES, device="cpu").view(512, -1)
    return {
        "bf16": cost_of_cast(torch.bfloat16, values, _ROUNDS),
        "int8": cost_of_codec(Int8(), values, _ROUNDS),
    }
