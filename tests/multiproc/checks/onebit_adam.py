"""OneBitAdam on real ranks: Adam at first, then momenta as signs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import mydist as md
from multiproc.checks.codecs import ROWS, WIDTH, expect_same_bits, gradients_of, mean_of
from multiproc.checks.models import raises
from multiproc.reference import raw
from multiproc.registry import NotHereError, check
from mydist import _C


class AdamLayer:
    """A weight whose gradients are given; OneBitAdam, or Adam, trains it."""

    def __init__(self, make: Callable[[list[torch.nn.Parameter]], Any], compression: Any) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(ROWS, WIDTH))
        named = [("weight", self.weight)]
        self.optimizer = md.DistributedOptimizer(make([self.weight]), named, compression)

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        (self.weight * gradients_of(md.rank(), step)[0]).sum().backward()
        self.optimizer.step()


@check(min_size=2)
def onebit_adam_is_adam_until_its_variances_are_frozen() -> None:
    coded = AdamLayer(
        lambda ps: md.OneBitAdam(ps, lr=0.01, freeze_step=4), md.Compression.onebit(force=True)
    )
    plain = AdamLayer(lambda ps: torch.optim.Adam(ps, lr=0.01), md.Compression.none)
    for step in range(4):
        coded.step(step)
        plain.step(step)
    torch.testing.assert_close(coded.weight, plain.weight, rtol=1e-4, atol=1e-6)
    state = coded.optimizer.state[coded.weight]
    square, sent = state["exp_avg_sq"].clone(), md.stats().get("codec_wire_bytes", 0)
    for step in range(4, 12):
        coded.step(step)
        expect_same_bits(coded.weight, "weight")
    assert raw(square) == raw(state["exp_avg_sq"])
    wire = md.stats()["codec_wire_bytes"] - sent
    assert 0 < wire < 8 * 4 * ROWS * WIDTH / 8  # Of eight steps in float32, less than an eighth.


@check(min_size=2)
def onebit_adam_averages_exact_momenta_where_nothing_is_encoded() -> None:
    """On one host, and to the rounding: m is linear in the gradients."""
    if len(set(_C.topology().hosts)) > 1:
        raise NotHereError("momenta are encoded between hosts")
    layer = AdamLayer(lambda ps: md.OneBitAdam(ps, lr=0.01, freeze_step=2), md.Compression.none)
    mean = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    for step in range(6):
        layer.step(step)
        mean = 0.9 * mean + 0.1 * mean_of(step)[0]
    found = layer.optimizer.state[layer.weight]["exp_avg"].double()
    assert (found - mean).abs().max() < 1e-6


@check(min_size=2, cases=[(torch.float32,), (torch.bfloat16,)])
def onebit_adam_takes_parameters_in_any_order_of_memory(dtype: torch.dtype) -> None:
    """Momenta lie as the parameter does, and travel in the order of its elements."""
    ends = []
    for order in (torch.contiguous_format, torch.channels_last):
        values = torch.zeros(ROWS, 16, 4, 4, dtype=dtype)
        weight = torch.nn.Parameter(values.contiguous(memory_format=order))
        plain = md.OneBitAdam([weight], lr=0.01, freeze_step=2)
        onebit = md.Compression.onebit(force=True)
        optimizer = md.DistributedOptimizer(plain, [("weight", weight)], onebit)
        for step in range(4):
            optimizer.zero_grad()
            gradient = gradients_of(md.rank(), step)[0].view(weight.shape)
            # Eighths: the order in which ranks add them up makes no difference.
            (weight * (gradient * 8).round().div(8).to(dtype)).sum().backward()
            optimizer.step()
        expect_same_bits(weight, "weight")
        ends.append(raw(weight))
    assert ends[0] == ends[1]


@check(min_size=2)
def onebit_adam_takes_no_other_codec_and_no_strategy() -> None:
    def make(ps: list[torch.nn.Parameter]) -> Any:
        return md.OneBitAdam(ps, lr=0.01, freeze_step=2)

    raises(lambda: AdamLayer(make, md.Compression.int8()), "int8(block=256)", "OneBitAdam")
    weight = torch.nn.Parameter(torch.zeros(3))
    raises(
        lambda: md.DistributedOptimizer(make([weight]), communication=md.LocalSGD(2)),
        "OneBitAdam needs communication=SynchronousGradients()",
    )
    raises(
        lambda: md.DistributedOptimizer(make([weight]), op=md.Sum),
        "expected op=Average for OneBitAdam",
    )
