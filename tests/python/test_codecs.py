"""Codecs without ranks: what is decoded, what is kept, and what is refused."""

from __future__ import annotations

import math

import pytest
import torch

import mydist as md
from mydist.codecs.codec import Codec, CodecCore
from mydist.optim.encoding.places import Places
from mydist.optim.encoding.slices import Cut, as_table, slices_of

C = md.Compression
CODECS = [
    *(C.int8(), C.int8(block=48)),
    *(C.topk(), C.topk(ratio=0.7), C.threshold(1.5), C.dgc(ratio=0.01)),
]


def encoded(
    core: CodecCore, values: torch.Tensor, key: int = 7, state: torch.Tensor | None = None
) -> torch.Tensor:
    """The payload of all values."""
    out = torch.zeros(core.max_bytes(values.numel()), dtype=torch.uint8)
    cuts = as_table([Cut(0, 0, values.numel())])
    if state is None:
        state = torch.zeros(values.numel() * core.state_floats)
    states = [state] if core.state_floats else []
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
def test_the_same_values_and_key_give_the_same_bytes(codec: Codec) -> None:
    core, values = codec.core(), random_values(3000)
    state = torch.get_rng_state()
    assert torch.equal(encoded(core, values), encoded(core, values.clone()))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    "make",
    [lambda: C.int8(block=8), lambda: C.int8(block=1 << 20), lambda: C.int8(block=64.0)],  # type: ignore[arg-type]
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
