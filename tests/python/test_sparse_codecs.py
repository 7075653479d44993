"""Codecs that send few of the values, without ranks."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import mydist as md
from mydist.codecs.codec import Codec, CodecCore
from mydist.optim.encoding.slices import Cut, as_table

C = md.Compression
COUNT = 5000
SPARSE: list[Codec] = [C.topk(), C.topk(ratio=0.3), C.topk(ratio=1), C.threshold(1.5), C.dgc(0.02)]


def random_values(count: int = COUNT, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


class Sender:
    """One gradient of one rank: its state and what it sends."""

    def __init__(self, codec: Codec, count: int = COUNT) -> None:
        self.core: CodecCore = codec.core()
        self.count = count
        self.state = torch.zeros(count * self.core.state_floats)
        self._cuts = as_table([Cut(0, 0, count)])

    def payload(self, values: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(self.core.max_bytes(self.count), dtype=torch.uint8)
        sizes, _ = self.core.encode([values], self._cuts, [self.state], [1.0], [7], out)
        return out[: sizes[0]]

    def decoded(self, payload: torch.Tensor) -> torch.Tensor:
        out = torch.zeros(self.count)
        self.core.decode_add(payload, self._cuts, 1.0, [out])
        return out

    def sent(self, values: torch.Tensor) -> torch.Tensor:
        """What arrives of these; the step counts."""
        payload = self.payload(values)
        self.core.keep([values], self._cuts, [self.state], [1.0], payload)
        return self.decoded(payload)


def body_bytes(payload: torch.Tensor) -> int:
    return int.from_bytes(payload[4:8].numpy().tobytes(), "little")


@pytest.mark.parametrize("ratio", [0.001, 0.01, 0.3])
@pytest.mark.parametrize("count", [1, 31, 32, 33, 5000, 300_001])
def test_topk_sends_the_values_that_torch_takes(ratio: float, count: int) -> None:
    values = random_values(count)
    kept = max(1, math.ceil(ratio * count))
    sender = Sender(C.topk(ratio), count)
    arrived = sender.sent(values)
    expected = torch.zeros(count)
    largest = values.abs().topk(kept).indices
    expected[largest] = values[largest]
    assert torch.equal(arrived, expected)


@pytest.mark.parametrize(
    "values",
    [
        torch.zeros(1000),
        torch.full((1000,), -2.0),
        torch.tensor([0.0, 1.0] * 500),
        torch.cat([torch.zeros(997), torch.tensor([1.0, 2.0, 3.0])]),
        torch.tensor([9.0] + [0.0] * 63).repeat(16)[:1000],  # At one place of each row.
        torch.cat([torch.full((30,), 5.0), 1e-3 * random_values(970)]),
    ],
    ids=["zeros", "equal", "pairs", "few", "columns", "front"],
)
def test_of_equal_magnitudes_topk_sends_the_first(values: torch.Tensor) -> None:
    order = sorted(range(1000), key=lambda i: (-abs(float(values[i])), i))
    kept = sorted(order[:20])
    payload = Sender(C.topk(0.02), 1000).payload(values)
    indices = np.frombuffer(payload[16 : 16 + 80].numpy().tobytes(), "<u4")
    assert indices.tolist() == kept


@pytest.mark.parametrize(
    ("ratio", "count", "kept"), [(0.07, 100, 7), (0.001, 1500, 2), (1e-9, 5, 1)]
)
def test_a_ratio_keeps_so_many_values(ratio: float, count: int, kept: int) -> None:
    assert body_bytes(Sender(C.topk(ratio), count).payload(random_values(count))) == 8 * kept


@pytest.mark.parametrize("codec", [c for c in SPARSE if not isinstance(c, C.dgc)], ids=str)
def test_what_is_sent_and_what_is_kept_make_the_input(codec: Codec) -> None:
    sender = Sender(codec)
    for step in range(4):
        values, before = random_values(seed=step), sender.state.clone()
        arrived = sender.sent(values)
        assert torch.equal(arrived + sender.state, values + before)
        assert not (arrived * sender.state).any()


@pytest.mark.parametrize("codec", SPARSE, ids=str)
def test_payloads_are_no_larger_than_what_they_encode(codec: Codec) -> None:
    sender = Sender(codec)
    assert body_bytes(sender.payload(torch.full((COUNT,), 3.0))) <= 4 * COUNT
    assert sender.core.max_bytes(COUNT) <= 4 * COUNT + 16


def test_a_threshold_sends_what_reaches_it() -> None:
    values = random_values()
    values[:3] = torch.tensor([1.5, -1.5, 1.4999999])
    arrived = Sender(C.threshold(1.5)).sent(values)
    assert torch.equal(arrived, torch.where(values.abs() >= 1.5, values, torch.zeros(())))


def test_nothing_reaches_a_threshold() -> None:
    sender = Sender(C.threshold(100.0))
    payload = sender.payload(random_values())
    assert payload.numel() == 16
    assert not sender.decoded(payload).any()


def test_dgc_is_the_algorithm_of_the_paper() -> None:
    momentum, kept = 0.9, 100
    sender = Sender(C.dgc(kept / COUNT, momentum))
    u, v = np.zeros(COUNT, np.float32), np.zeros(COUNT, np.float32)
    for step in range(20):
        g = random_values(seed=step)
        u = np.float32(momentum) * u + g.numpy()
        v = v + u
        mask = np.zeros(COUNT, bool)
        mask[np.argsort(-np.abs(v), kind="stable")[:kept]] = True
        expected = np.where(mask, v, np.float32(0))
        u[mask] = v[mask] = 0
        assert np.array_equal(sender.sent(g).numpy(), expected)
        assert np.array_equal(sender.state.numpy(), np.stack([u, v], axis=1).ravel())


def test_dgc_warms_up_in_four_parts() -> None:
    codec = C.dgc(0.001, warmup_steps=8)
    ratios = [codec.at_step(step).ratio for step in (0, 1, 2, 4, 6, 7, 8, 1000)]
    assert ratios == [0.25, 0.25, 0.0625, 0.015625, 0.004, 0.004, 0.001, 0.001]
    assert C.dgc(0.1, warmup_steps=4).at_step(3).ratio == 0.1
    assert C.dgc().at_step(0) == C.dgc()


@pytest.mark.parametrize("codec", SPARSE, ids=str)
def test_a_wrong_body_is_refused_or_decoded(codec: Codec) -> None:
    """Bytes of a peer: whatever they are, nothing but an error or values comes out."""
    sender, random = Sender(codec), np.random.default_rng(3)
    good = sender.payload(random_values()).numpy()
    outcomes = {True: 0, False: 0}
    for number in range(600):
        bytes_ = good.copy()
        if number % 3 == 0:  # A right header, and any body.
            bytes_[16:] = random.integers(0, 256, bytes_.size - 16)
        else:
            for at in random.integers(0, bytes_.size, 1 + number % 5):
                bytes_[at] = random.integers(256)
        if number % 7 == 0:
            bytes_ = bytes_[: random.integers(bytes_.size)]
        try:
            sender.decoded(torch.from_numpy(bytes_.copy()))
            outcomes[True] += 1
        except md.MydistError:
            outcomes[False] += 1
    assert all(outcomes.values()), outcomes


@pytest.mark.parametrize("indices", [[5, 5], [6, 5], [0, COUNT], [0, 2**32 - 1]])
def test_indices_that_do_not_ascend_or_lie_outside_are_refused(indices: list[int]) -> None:
    sender = Sender(C.topk(2 / COUNT))
    payload = sender.payload(random_values())
    payload[16:24] = torch.from_numpy(np.array(indices, "<u4").view(np.uint8))
    with pytest.raises(md.MydistError, match="a body has the index"):
        sender.decoded(payload)


@pytest.mark.parametrize(
    "make",
    [
        lambda: C.topk(0),
        lambda: C.topk(1.5),
        lambda: C.topk(math.nan),
        lambda: C.topk("1"),  # type: ignore[arg-type]
        lambda: C.threshold(0),
        lambda: C.threshold(math.inf),
        lambda: C.dgc(momentum=1),
        lambda: C.dgc(momentum=math.nan),
        lambda: C.dgc(warmup_steps=1.5),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_argument_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"Compression\.\w+: \w+ is .*, expected"):
        make()  # type: ignore[operator]
