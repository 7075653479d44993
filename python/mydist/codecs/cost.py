"""Cost: what a codec takes on this machine, and below which speed of a link it pays.

Milliseconds are those of one core for an MB, 10^6 bytes of float32. A link's speed is in Gbit/s in
each direction.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from .codec import WAYS_WITH_CORE, Codec

__all__ = ["Cost", "cost_of_cast", "cost_of_codec", "has_cost"]

MEGABYTE = 1e6
_MS_PER_MB = 8.0  # Of an MB at 1 Gbit/s.
_KEY = 12345  # What a stochastic codec draws from; any will do.


@dataclass(frozen=True)
class Cost:
    """Of one codec or cast.

    Attributes:
        share: bytes of a payload ÷ those of its float32 values.
        encode_ms: to encode an MB into memory of its own, and to bring a residual up to date.
        decode_ms: to set an MB to zero and to add what was decoded, as exchanges do.
        way: how payloads travel; "none" for values as they are.
    """

    share: float
    encode_ms: float
    decode_ms: float
    way: str

    @property
    def bytes_per_value(self) -> float:
        """In a payload."""
        return 4 * self.share

    def cpu_ms(self, hosts: int) -> float:
        """What a rank takes to encode and decode an MB of gradients, summed over so many hosts."""
        decoded = {
            # The slice of each other host that this rank owns, and all slices in the end.
            "slices": 1 + (hosts - 1) / hosts,
            "gathers": hosts,
        }.get(self.way, 1)
        return self.encode_ms + decoded * self.decode_ms

    def link_ms(self, hosts: int, gbits: float) -> float:
        """What the link of each host takes for an MB of gradients."""
        sent = hosts - 1 if self.way == "gathers" else 2 * (hosts - 1) / hosts
        return self.share * sent * _MS_PER_MB / gbits

    def sum_ms(self, hosts: int, gbits: float) -> float:
        """Both, one after the other."""
        return self.cpu_ms(hosts) + self.link_ms(hosts, gbits)

    def pays_below(self, hosts: int) -> float:
        """The speed in Gbit/s above which values as they are arrive sooner; 0 if at every speed."""
        saved = RAW.link_ms(hosts, 1.0) - self.link_ms(hosts, 1.0)
        if saved <= 0:
            return 0.0
        cpu_ms = self.cpu_ms(hosts)
        return saved / cpu_ms if cpu_ms > 0 else float("inf")


RAW = Cost(1.0, 0.0, 0.0, "none")


def has_cost(codec: Codec) -> bool:
    """Whether its work can be timed without other ranks."""
    return codec.way in WAYS_WITH_CORE


def cost_of_codec(codec: Codec, values: torch.Tensor, rounds: int) -> Cost:
    """The least of so many rounds. `values`: float32 on the CPU, contiguous."""
    core = codec.core()
    flat = values.view(-1)
    count = flat.numel()
    cuts = torch.tensor([[0, 0, count]], dtype=torch.int64, device="cpu")
    floats = count * core.state_floats
    states = [torch.zeros(floats, device="cpu")] if floats else []
    factors = [1.0] * len(states)
    total = torch.zeros(count, device="cpu")
    payloads: list[torch.Tensor] = []

    def encode() -> None:
        payloads.clear()
        out = torch.empty(core.max_bytes(count), dtype=torch.uint8, device="cpu")
        sizes, _ = core.encode([flat], cuts, states, factors, [_KEY], out)
        payloads.append(out[: sizes[0]])
        if states:
            core.keep([flat], cuts, states, factors, payloads[0])

    def decode() -> None:
        core.decode_add(payloads[0], cuts, 1.0, [total.zero_()])

    def forget() -> None:
        for state in states:
            state.zero_()  # Residuals of the same values, over and over, would become large.

    encode_ms, decode_ms = _least([encode, decode], count, rounds, forget)
    return Cost(payloads[0].numel() / (4 * count), encode_ms, decode_ms, codec.way)


def cost_of_cast(dtype: torch.dtype, values: torch.Tensor, rounds: int) -> Cost:
    """The least of so many rounds, of a cast to the wire and back."""
    sent, back = torch.empty_like(values, dtype=dtype), torch.empty_like(values)
    calls = [lambda: _discard(sent.copy_(values)), lambda: _discard(back.copy_(sent))]
    encode_ms, decode_ms = _least(calls, values.numel(), rounds)
    return Cost(dtype.itemsize / values.element_size(), encode_ms, decode_ms, "sums")


def _discard(_: torch.Tensor) -> None: ...


def _least(
    calls: list[Callable[[], None]],
    count: int,
    rounds: int,
    prepare: Callable[[], None] = lambda: None,
) -> list[float]:
    """Of each call, which take turns; in ms per MB. The first turn warms up.

    What other processes take from a core or from the memory is no cost of a codec.
    """
    times: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):
        prepare()
        for call, of_call in zip(calls, times, strict=True):
            begin = time.perf_counter()
            call()
            if turn > 0:
                of_call.append(time.perf_counter() - begin)
    return [min(of_call) * 1e3 / (4 * count / MEGABYTE) for of_call in times]
