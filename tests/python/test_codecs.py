"""Codecs without ranks: what is decoded, what is kept, and what is refused."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import mydist as md
from mydist.codecs.codec import Codec, CodecCore
from mydist.optim.encoding.places import Places
from mydist.optim.encoding.slices import Cut, as_table, slices_of


@dataclass(frozen=True)
class Halves(md.PythonCodec):
    """A codec of a user."""

    is_fixed: ClassVar[bool] = True

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(torch.bfloat16).view(torch.uint8)

    def decode(self, payload: torch.Tensor, count: int) -> torch.Tensor:
        return payload.view(torch.bfloat16).float()

    def max_bytes(self, count: int) -> int:
        return 2 * count


C = md.Compression
CODECS = [
    *(C.int8(), C.int8(block=48)),
    *(C.topk(), C.topk(ratio=0.7), C.threshold(1.5), C.dgc(ratio=0.01)),
    C.int8(),
    C.int8(block=48),
    C.fp8(),
    C.fp8(format="e5m2", block=48),
    C.onebit(),
    C.signsgd(),
    C.qsgd(),
    C.qsgd(levels=3, bucket=48),
    C.terngrad(),
    C.natural(),
    Halves(),
]


def encoded(
    core: CodecCore, values: torch.Tensor, key: int = 7, state: torch.Tensor | None = None
) -> torch.Tensor:
    """The payload of all values; with a state of zeros if there is to be one."""
    out = torch.zeros(core.max_bytes(values.numel()), dtype=torch.uint8)
    cuts = as_table([Cut(0, 0, values.numel())])
    if state is None:
        state = torch.zeros(values.numel() * core.state_floats)
    states = [state] if core.state_floats else []
    if state is None and core.state_floats:
        state = torch.zeros(values.numel() * core.state_floats)
    states = [] if state is None else [state]
    sizes, _ = core.encode([values], cuts, states, [1.0] * len(states), [key], out)
    return out[: sizes[0]]


def decoded(core: CodecCore, payload: torch.Tensor, count: int) -> torch.Tensor:
    out = torch.zeros(count)
    core.decode_add(payload, as_table([Cut(0, 0, count)]), 1.0, [out])
    return out


def random_values(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("count", [1, 47, 48, 255, 256, 257, 5000])
def test_int8_is_off_by_half_a_step_of_its_block_at_most(count: int) -> None:
    values = random_values(count)
    core = C.int8().core()
    got = decoded(core, encoded(core, values), count)
    for block, back in zip(values.double().split(256), got.double().split(256), strict=True):
        assert (block - back).abs().max() <= block.abs().max() / 127 * 0.500001


@pytest.mark.parametrize("count", [1, 47, 48, 257, 5000])
@pytest.mark.parametrize(
    ("format_", "digits", "most", "least"), [("e4m3", 4, 448, 2**-10), ("e5m2", 3, 57344, 2**-17)]
)
def test_fp8_is_off_by_half_a_digit_at_most(
    format_: str, digits: int, most: int, least: float, count: int
) -> None:
    values = random_values(count) * torch.logspace(0, -8, count)
    core = C.fp8(format=format_, block=48).core()
    got = decoded(core, encoded(core, values), count)
    for block, back in zip(values.double().split(48), got.double().split(48), strict=True):
        step = block.abs().max() / most * least
        assert ((block - back).abs() <= (block.abs() / 2**digits).clamp(min=step) * 1.000001).all()
        assert back.abs().max() == pytest.approx(float(block.abs().max()))


def next_powers(sizes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    below = torch.exp2(sizes.log2().floor())
    return below, 2 * below


def next_levels(levels: int, bucket: int) -> Callable[[torch.Tensor], tuple[torch.Tensor, ...]]:
    def next_to(sizes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        units = torch.cat(
            [(part.norm() / levels).expand(len(part)) for part in sizes.split(bucket)]
        )
        below = (sizes / units).floor() * units
        return below, below + units

    return next_to


# Of each unbiased codec: the numbers below and above each magnitude that it rounds to, and how
# large the variance of n values of norm 1 may be, as their papers have it.
UNBIASED = [
    (C.natural(), next_powers, 1 / 8),
    (C.qsgd(), next_levels(16, 512), min(200 / 16**2, math.sqrt(200) / 16)),
    (C.qsgd(levels=1, bucket=50), next_levels(1, 50), min(50, math.sqrt(50))),
    (C.qsgd(levels=127, bucket=64), next_levels(127, 64), 64 / 127**2),
    (C.terngrad(), lambda sizes: (0 * sizes, sizes.max().expand(len(sizes))), math.inf),
]


@pytest.mark.parametrize(
    ("codec", "next_to", "bound"), UNBIASED, ids=[str(row[0]) for row in UNBIASED]
)
def test_a_random_codec_has_no_bias_and_the_variance_of_its_paper(
    codec: Codec, next_to: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]], bound: float
) -> None:
    """Over 10^4 draws; uniform values, of which terngrad cuts none off."""
    count, draws, core = 200, 10_000, codec.core()
    values = torch.rand(count, generator=torch.Generator().manual_seed(3)) * 2 - 1
    cuts = as_table([Cut(draw, 0, count) for draw in range(draws)])
    payloads = torch.empty(draws * core.max_bytes(count), dtype=torch.uint8)
    core.encode([values] * draws, cuts, [], [], list(range(draws)), payloads)
    got = torch.zeros(draws, count)
    core.decode_add(payloads, cuts, 1.0, list(got))
    below, above = next_to(values.abs().double())
    sizes = got * values.sign()
    near = torch.minimum((sizes - below).abs(), (sizes - above).abs())
    assert near.max() < 1e-6
    variance = (values.abs() - below) * (above - values.abs())  # Of two points without bias.
    off = (got.double().mean(0) - values).abs()
    assert (off <= 5 * (variance / draws).sqrt() + 1e-7).all()
    total = (got - values).square().sum(1).double().mean()
    assert total == pytest.approx(float(variance.sum()), rel=0.02)
    assert total <= bound * values.square().sum()


def test_terngrad_cuts_off_what_is_far_from_the_rest() -> None:
    values = random_values(4000)
    values[5] = -40
    core = C.terngrad().core()
    most = 2.5 * values.double().square().mean().sqrt()
    got = decoded(core, encoded(core, values), 4000)
    assert got[5] == pytest.approx(-float(most))
    assert set(got.abs().unique().tolist()) == {0.0, abs(float(got[5]))}


def test_onebit_sends_signs_times_their_mean_magnitude() -> None:
    values = random_values(1001)
    core = C.onebit().core()
    got = decoded(core, encoded(core, values), 1001)
    assert torch.equal(got, values.sign() * values.double().abs().mean().float())


@pytest.mark.parametrize("codec", [c for c in CODECS if c.core().state_floats == 1], ids=str)
def test_what_is_kept_is_what_was_not_sent(codec: Codec) -> None:
    core, count, factor = codec.core(), 1000, 0.3
    values, state = random_values(count), random_values(count, seed=1)
    corrected = values + state * factor
    cuts = as_table([Cut(0, 0, count)])
    payload = torch.zeros(core.max_bytes(count), dtype=torch.uint8)
    core.encode([values], cuts, [state], [factor], [7], payload)
    core.keep([values], cuts, [state], [factor], payload)
    assert torch.equal(state, corrected - decoded(core, payload, count))


def test_the_mean_of_steps_of_onebit_is_right_by_its_residual() -> None:
    """Without the residual it stays wrong, however many steps there are."""
    core, steps, count = C.onebit().core(), 400, 512
    cuts, state = as_table([Cut(0, 0, count)]), torch.zeros(count)
    payload = torch.zeros(core.max_bytes(count), dtype=torch.uint8)
    true, arrived, forgetful = random_values(count), torch.zeros(count), torch.zeros(count)
    for step in range(steps):
        values = true + random_values(count, seed=step)
        forgetful += decoded(core, encoded(core, values), count)
        core.encode([values], cuts, [state], [1.0], [step], payload)
        core.decode_add(payload, cuts, 1.0, [arrived])
        core.keep([values], cuts, [state], [1.0], payload)
    assert (arrived / steps - true).norm() < 0.1 * true.norm()
    assert (forgetful / steps - true).norm() > 0.3 * true.norm()


def test_a_sign_is_one_and_that_of_zero_is_drawn() -> None:
    core, values = C.signsgd().core(), random_values(3000)
    values[1000:2000] = 0
    values[1500:2000] = -0.0
    first = decoded(core, encoded(core, values, key=1), 3000)
    again = decoded(core, encoded(core, values, key=2), 3000)
    assert torch.equal(first.abs(), torch.ones(3000))
    drawn = slice(1000, 2000)
    for signs in (first, again):
        assert torch.equal(signs[:1000], values[:1000].sign())
        assert torch.equal(signs[2000:], values[2000:].sign())
        assert abs(signs[drawn].mean()) < 0.1
    assert abs((first * again)[drawn].mean()) < 0.1


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_value_of_any_size_is_finite_where_it_arrives(codec: Codec) -> None:
    core = codec.core()
    for size in (1e-45, 1e-38, 1e-30, 1e30, 3e38):
        values = torch.full((700,), size)
        values[::2] *= -1
        payload = encoded(core, values)
        assert core.is_finite(payload, torch.tensor([700]))
        assert decoded(core, payload, 700).isfinite().all()


# Bytes of n values without the header, which is of 16 bytes.
BYTES: dict[str, Callable[[int], int]] = {
    "int8(block=256)": lambda n: n + 4 * math.ceil(n / 256),
    "fp8(format='e4m3', block=256)": lambda n: n + 4 * math.ceil(n / 256),
    "onebit()": lambda n: math.ceil(n / 8) + 4,
    "signsgd()": lambda n: math.ceil(n / 8) + 4,
    "qsgd(levels=16, bucket=512, seed=0)": lambda n: n * 6 // 8 + 4 * math.ceil(n / 512),
    "terngrad(seed=0)": lambda n: math.ceil(n / 4) + 4,
    "natural(seed=0)": lambda n: n + math.ceil(n / 512),
}


@pytest.mark.parametrize("codec", [c for c in CODECS if str(c) in BYTES], ids=str)
def test_a_payload_has_the_bytes_that_are_told(codec: Codec) -> None:
    core = codec.core()
    assert core.is_fixed
    for count in (8, 512, 4096, 5000):
        body = BYTES[str(codec)](count)
        assert encoded(core, random_values(count)).numel() == 16 + math.ceil(body / 8) * 8


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_values_that_are_not_finite_are_flagged(codec: Codec) -> None:
    core = codec.core()
    counts = torch.tensor([1000])
    values = random_values(1000)
    assert core.is_finite(encoded(core, values), counts)
    for bad in (math.nan, math.inf, -math.inf):
        values[700] = bad
        payload = encoded(core, values)
        assert not core.is_finite(payload, counts)
        assert not math.isfinite(decoded(core, payload, 1000)[700])


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_a_corrupt_payload_is_refused(codec: Codec) -> None:
    core = codec.core()
    payload = encoded(core, random_values(1000))
    for change in ({0: 200}, {1: 9}, {2: 1}, {4: 255, 5: 255}, {8: 1}):
        broken = payload.clone()
        for at, value in change.items():
            broken[at] = value
        with pytest.raises(md.MydistError, match="a payload of the codec .* is corrupt"):
            decoded(core, broken, 1000)
    for length in (0, 15, 16, payload.numel() - 8):
        with pytest.raises(md.MydistError, match="is corrupt"):
            decoded(core, payload[:length].contiguous(), 1000)


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_no_payload_writes_outside(codec: Codec) -> None:
    """Random bytes with and without a header, and payloads with some bytes changed."""
    core, count, draw = codec.core(), 700, random.Random(5)
    payload = bytes(encoded(core, random_values(count)).tolist())
    number, body = payload[0], struct.unpack("<I", payload[4:8])[0]
    cuts, out, outcomes = as_table([Cut(0, 16, count)]), torch.zeros(count + 32), set()
    for turn in range(400):
        if turn % 4 == 0:
            broken = bytearray(draw.randbytes(draw.randrange(len(payload) + 9)))
        elif turn % 4 == 1:
            length = draw.choice([body, body, draw.randrange(2 * body)])
            header = struct.pack("<BBHIQ", number, draw.randrange(2), 0, length, count)
            broken = bytearray(header + draw.randbytes(draw.choice([body, length]) + 8))
        else:
            broken = bytearray(payload)
            for _ in range(draw.randrange(1, 6)):
                broken[draw.randrange(16 if turn % 4 == 2 else len(broken))] = draw.randrange(256)
        try:
            core.decode_add(
                torch.frombuffer(broken, dtype=torch.uint8).clone()
                if broken
                else torch.empty(0, dtype=torch.uint8),
                cuts,
                1.0,
                [out],
            )
            outcomes.add("decoded")
        except md.MydistError:
            outcomes.add("refused")
        assert not out[:16].any() and not out[-16:].any()
    assert outcomes == {"decoded", "refused"}


@pytest.mark.parametrize("codec", CODECS, ids=str)
def test_the_same_values_and_key_give_the_same_bytes(codec: Codec) -> None:
    core, values = codec.core(), random_values(3000)
    state = torch.get_rng_state()
    assert torch.equal(encoded(core, values), encoded(core, values.clone()))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "make",
    [
        lambda: C.int8(block=8),
        lambda: C.int8(block=1 << 20),
        lambda: C.int8(block=64.0),  # type: ignore[arg-type]
        lambda: C.fp8(format="e3m4"),
        lambda: C.fp8(format=8),  # type: ignore[arg-type]
        lambda: C.fp8(block=1),
        lambda: C.qsgd(levels=0),
        lambda: C.qsgd(levels=128),
        lambda: C.qsgd(bucket=8),
        lambda: C.qsgd(seed=-1),
        lambda: C.terngrad(seed=1.5),  # type: ignore[arg-type]
        lambda: C.natural(seed=1 << 63),
        lambda: C.auto(max_error=0.0),
        lambda: C.auto(max_error=True),
    ],
)
def test_a_wrong_argument_is_refused(make: object) -> None:
    with pytest.raises(ValueError, match=r"Compression\.\w+: \w+ is .*, expected"):
        make()  # type: ignore[operator]


@pytest.mark.parametrize("hosts", ["a", "ab", "aab", "aabb", "abab", "aaabb", "abcc", "aaaabbcd"])
def test_every_slice_is_summed_once_per_host_and_owned_once(hosts: str) -> None:
    views = [Places(list(hosts), rank) for rank in range(len(hosts))]
    for owner in range(len(hosts)):
        senders = views[0].senders_to(owner)
        assert [hosts[sender] for sender in senders] == list(dict.fromkeys(hosts))
        assert owner in senders
        for sender in senders:
            assert owner in views[sender].summed_by(sender)
            assert (owner in views[sender].sent_by(sender)) == (hosts[sender] != hosts[owner])
    assert views[0].adds_up == (len(set(hosts)) < len(hosts))


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
@pytest.mark.parametrize("block", [1, 16, 256])
def test_slices_cover_each_tensor_once_at_multiples_of_the_block(parts: int, block: int) -> None:
    lengths = [1, 5000, 256, 4097]
    slices = slices_of(lengths, parts, block)
    for tensor, length in enumerate(lengths):
        cuts = [cut for part in slices for cut in part if cut.tensor == tensor]
        assert [cut.begin for cut in cuts] == [0, *(c.begin + c.count for c in cuts[:-1])]
        assert sum(cut.count for cut in cuts) == length
        assert all(cut.begin % block == 0 for cut in cuts)


class Nothing(md.PythonCodec):
    pass


class Bits(Halves):
    def encode(self, values: torch.Tensor) -> torch.Tensor:
        return values.to(torch.bfloat16)


class Short(Halves):
    def decode(self, payload: torch.Tensor, count: int) -> torch.Tensor:
        return super().decode(payload, count)[1:]


@pytest.mark.parametrize(
    ("codec", "error", "text"),
    [
        (Nothing(), NotImplementedError, r"Nothing must implement encode\(values\)"),
        (Bits(), md.MydistError, r"Bits\(\): encode gave torch.bfloat16 \(10,\), expected a flat"),
        (Short(), md.MydistError, r"decode gave \(9,\), expected a flat tensor of 10 values"),
    ],
    ids=str,
)
def test_a_codec_in_python_that_does_not_fit_is_named(
    codec: Codec, error: type[Exception], text: str
) -> None:
    core = codec.core()
    with pytest.raises(error, match=text):
        decoded(core, encoded(core, random_values(10)), 10)
