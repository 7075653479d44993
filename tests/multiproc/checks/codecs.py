"""Codecs on real ranks: sums of encoded gradients, what is kept, and what travels as it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar
from unittest.mock import patch

import torch

import mydist as md
from multiproc.checks.checkpoints import folder
from multiproc.checks.models import raises
from multiproc.checks.process_sets import added
from multiproc.checks.strategy_state import caught
from multiproc.reference import raw
from multiproc.registry import NotHereError, check
from mydist import _C
from mydist.codecs.cost import Cost
from mydist.optim.encoding import automatic


@dataclass(frozen=True)
class Truncated(md.PythonCodec):
    """The upper bits of float32: always nearer to zero, so that only a residual makes it right."""

    bytes_kept: int
    keeps_residual: ClassVar[bool] = True
    is_fixed: ClassVar[bool] = True

    def max_bytes(self, count: int) -> int:
        return self.bytes_kept * count

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        return values.view(torch.uint8).view(-1, 4)[:, 4 - self.bytes_kept :].reshape(-1)

    def decode(self, payload: torch.Tensor, count: int) -> torch.Tensor:
        whole = torch.zeros(count, 4, dtype=torch.uint8)
        whole[:, 4 - self.bytes_kept :] = payload.view(count, self.bytes_kept)
        return whole.view(-1).view(torch.float32)


@dataclass(frozen=True)
class NonZeros(md.PythonCodec):
    """Payloads of other sizes in each step."""

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        places = values.nonzero().view(-1).to(torch.int32)
        return torch.cat([places, values[places].view(torch.int32)]).view(torch.uint8)

    def decode(self, payload: torch.Tensor, count: int) -> torch.Tensor:
        places, values = payload.view(torch.int32).view(2, -1)
        whole = torch.zeros(count)
        whole[places] = values.view(torch.float32)
        return whole

    def max_bytes(self, count: int) -> int:
        return 8 * count


# Takes a reduced gradient and those of all ranks, stacked, and fails if they do not fit together.
Fit = Callable[[torch.Tensor, torch.Tensor], None]


def within(share: float) -> Fit:
    """Each value is as near to the mean as this share of the largest."""

    def expect(grad: torch.Tensor, gradients: torch.Tensor) -> None:
        worst = (grad - gradients.mean(0)).abs().max()
        assert worst <= gradients.abs().max() * share * 1.01, worst
        assert worst > 0 or share < 1e-5, "nothing was encoded"

    return expect


def noise_of(share: float) -> Fit:
    """The error is at most this share of the mean, both as norms."""

    def expect(grad: torch.Tensor, gradients: torch.Tensor) -> None:
        mean = gradients.mean(0)
        assert 0 < (grad - mean).norm() <= share * mean.norm(), (grad - mean).norm() / mean.norm()

    return expect


def along(cosine: float) -> Fit:
    """The angle to the mean has this cosine at least."""

    def expect(grad: torch.Tensor, gradients: torch.Tensor) -> None:
        mean = gradients.mean(0)
        reached = (grad * mean).sum() / grad.norm() / mean.norm()
        assert cosine <= reached < 1, reached

    return expect


def majority(grad: torch.Tensor, gradients: torch.Tensor) -> None:
    """The sign that most ranks have; either where there is a tie."""
    votes = gradients.sign().sum(0)
    assert (grad.abs() == 1).all()
    assert (grad == votes.sign())[votes != 0].all()


# By name: makes the codec, and how the reduced gradient fits those of the ranks.
CODECS: dict[str, tuple[Callable[[bool], Any], Fit]] = {
    "int8": (lambda force: md.Compression.int8(block=64, force=force), within(1 / 127)),
    "fp8": (lambda force: md.Compression.fp8(force=force), within(1 / 8)),
    "onebit": (lambda force: md.Compression.onebit(force=force), along(0.4)),
    "signsgd": (lambda force: md.Compression.signsgd(force=force), majority),
    "qsgd": (lambda force: md.Compression.qsgd(levels=127, bucket=64, force=force), noise_of(0.1)),
    "terngrad": (lambda force: md.Compression.terngrad(force=force), along(0.4)),
    "natural": (lambda force: md.Compression.natural(force=force), noise_of(0.5)),
    "python": (lambda force: Truncated(bytes_kept=2, force=force), within(1 / 64)),
    "python exact": (lambda force: NonZeros(force=force), within(1e-6)),
}
BY_NAME = [(name,) for name in CODECS]
ROWS, WIDTH = 48, 256  # More values than travel as they are.


class Layer:
    """A weight that is encoded and a bias that is not; gradients are given, not computed."""

    def __init__(
        self, compression: Any, dtype: torch.dtype = torch.float32, **options: Any
    ) -> None:
        self.weight = torch.nn.Parameter(torch.zeros(ROWS, WIDTH, dtype=dtype))
        self.bias = torch.nn.Parameter(torch.zeros(ROWS, dtype=dtype))
        plain = torch.optim.SGD([self.weight, self.bias], lr=0.5)
        named = [("weight", self.weight), ("bias", self.bias)]
        self.optimizer = md.DistributedOptimizer(plain, named, compression, **options)

    def backward(self, step: int = 0, first: float | None = None) -> None:
        """Gradients of this rank and step; `first`: that of the first value."""
        weight, bias = gradients_of(md.rank(), step)
        if first is not None:
            weight[0, 0] = first
        total = (self.weight * weight.to(self.weight.dtype)).sum()
        (total + (self.bias * bias.to(self.bias.dtype)).sum()).backward()

    def synchronize(self, step: int = 0) -> torch.Tensor:
        """The reduced gradient of the weight."""
        self.optimizer.zero_grad()
        self.backward(step)
        self.optimizer.synchronize()
        assert self.weight.grad is not None
        return self.weight.grad


def gradients_of(rank: int, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    weight = torch.randn(ROWS, WIDTH, generator=generator)
    return weight, torch.randn(ROWS, generator=generator)


def mean_of(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """In float64, over all ranks."""
    pairs = [gradients_of(rank, step) for rank in range(md.size())]
    return tuple(torch.stack([p[i].double() for p in pairs]).mean(0) for i in (0, 1))  # type: ignore[return-value]


def expect_same_bits(tensor: torch.Tensor, name: str) -> None:
    """On all ranks."""
    md.check_consistency({name: tensor})


@check(min_size=2, cases=BY_NAME)
def the_sum_of_encoded_gradients_is_near_the_mean(name: str) -> None:
    make, expect_fit = CODECS[name]
    layer = Layer(make(True))
    for step in range(3):
        grad = layer.synchronize(step)
        gradients = [gradients_of(rank, step)[0].double() for rank in range(md.size())]
        expect_fit(grad.double(), torch.stack(gradients))
        _, bias = mean_of(step)
        assert layer.bias.grad is not None
        assert (layer.bias.grad.double() - bias).abs().max() < 1e-6
        expect_same_bits(grad, "gradient")


@check(min_size=2)
def codecs_by_pattern_leave_the_rest_as_it_is() -> None:
    layer = Layer({"weight": md.Compression.int8(force=True), "*": md.Compression.none})
    layer.synchronize()
    mixed = {"bias": md.Compression.fp16, "*": md.Compression.int8(force=True)}
    half = Layer(mixed)
    half.synchronize()
    assert layer.weight.grad is not None and half.weight.grad is not None
    assert raw(layer.weight.grad) == raw(half.weight.grad)
    assert half.bias.grad is not None and layer.bias.grad is not None
    assert raw(half.bias.grad) != raw(layer.bias.grad)


@check(min_size=2, cases=[(torch.float64,), (torch.bfloat16,)])
def gradients_of_other_types_take_part(dtype: torch.dtype) -> None:
    grad = Layer(md.Compression.int8(force=True), dtype).synchronize()
    assert grad.dtype == dtype
    bound = 1e-12 if dtype == torch.float64 else 0.1
    assert (grad.double() - mean_of(0)[0]).abs().max() < bound
    expect_same_bits(grad, "gradient")


@check(min_size=2, cases=BY_NAME)
def a_gradient_that_is_not_finite_leaves_no_trace(name: str) -> None:
    """One rank has an infinite value: all ranks see it, and what they keep stays as it is."""
    make, _ = CODECS[name]
    layer, other = Layer(make(True)), Layer(make(True))
    for step in range(3):
        assert raw(layer.synchronize(step)) == raw(other.synchronize(step))
        before = layer.optimizer.rank_state_dict()
        layer.optimizer.zero_grad()
        layer.backward(step, float("inf") if md.rank() == md.size() - 1 else None)
        layer.optimizer.synchronize()
        assert layer.weight.grad is not None
        assert not torch.isfinite(layer.weight.grad).all()
        assert str(before) == str(layer.optimizer.rank_state_dict())


@check(min_size=2)
def ranks_with_other_codecs_are_refused() -> None:
    block = 64 if md.rank() == 0 else 128
    layer = Layer(md.Compression.int8(block=block, force=True))
    layer.backward()
    raises(layer.optimizer.step, "int8(block=64", "int8(block=128", kind=md.MismatchError)


@check(min_size=2)
def a_codec_with_another_operation_is_refused() -> None:
    raises(lambda: Layer(md.Compression.int8(), op=md.Max), "needs op=Average or Sum")


@check(min_size=2)
def a_vote_with_a_strategy_is_refused() -> None:
    strategy = md.LocalSGD(every=2)
    raises(lambda: Layer(md.Compression.signsgd(), communication=strategy), "another codec")


@check(min_size=2)
def a_class_in_place_of_a_codec_is_refused() -> None:
    for kind, told in ((md.Compression.int8, "Compression.int8("), (Truncated, "Truncated(")):
        raises(lambda kind=kind: Layer(kind), f"expected an object; write {told}")  # type: ignore[misc]


@check(min_size=2)
def explain_tells_how_gradients_travel() -> None:
    layer = Layer(md.Compression.int8())
    layer.synchronize()
    facts = md.explain().facts
    texts = [str(fact) for topic, fact in facts.items() if topic.startswith("compression")]
    one_host = len(set(_C.topology().hosts)) == 1
    wanted = (
        "int8(block=256) is not used" if one_host else "int8(block=256) for 1 gradient in 1 bucket"
    )
    assert any(wanted in text for text in texts), texts


@check(min_size=2)
def only_what_leaves_a_host_is_encoded() -> None:
    hosts = _C.topology().hosts
    if len(set(hosts)) == 1:
        raise NotHereError("all ranks are on one host, where nothing is encoded")
    before = md.stats()
    layer = Layer(md.Compression.int8())
    grad = layer.synchronize()
    expect_same_bits(grad, "gradient")
    counted = {
        key: md.stats()[key] - before.get(key, 0) for key in ("codec_raw_bytes", "codec_wire_bytes")
    }
    raw_bytes, wire_bytes = counted.values()
    assert 0.25 * raw_bytes < wire_bytes < 0.35 * raw_bytes, counted


@check(min_size=2)
def a_strategy_sends_its_means_encoded() -> None:
    """Two rounds: parameters are equal on all ranks, and near those of exact means."""
    codec = md.Compression.int8(block=64, force=True)
    plain, coded = (
        Layer(compression, communication=md.LocalSGD(2))
        for compression in (md.Compression.none, codec)
    )
    before = md.stats()["codec_wire_bytes"]
    for step in range(4):
        for layer in (plain, coded):
            layer.optimizer.zero_grad()
            layer.backward(step)
            layer.optimizer.step()
    assert md.stats()["codec_wire_bytes"] > before
    expect_same_bits(coded.weight, "weight")
    worst = (plain.weight - coded.weight).abs().max()
    assert 0 < worst < 4 * plain.weight.abs().max() / 127
    raises(
        lambda: Layer({"*": codec}, communication=md.LocalSGD(2)),
        "expected one codec or Compressor with communication=",
    )


@check(min_size=2)
def what_a_codec_in_python_has_not_sent_follows_later() -> None:
    """The mean over steps of the same gradient comes as near to it as there are steps."""
    layer, steps = Layer(Truncated(bytes_kept=2, force=True)), 16
    total = torch.zeros(ROWS, WIDTH, dtype=torch.float64)
    for _ in range(steps):
        total += layer.synchronize(0)
    once = (layer.synchronize(0).double() - mean_of(0)[0]).abs().mean()
    assert (total / steps - mean_of(0)[0]).abs().mean() < once / 4


@check(min_size=2)
def a_codec_in_python_that_breaks_its_word_is_told() -> None:
    @dataclass(frozen=True)
    class Broken(Truncated):
        def encode(self, values: torch.Tensor) -> torch.Tensor:
            return super().encode(values)[1:]

    layer = Layer(Broken(bytes_kept=3, force=True))
    layer.backward()
    raises(layer.optimizer.step, "Broken(", "expected", "as max_bytes(", kind=md.MydistError)


def trained(layer: Layer, begin: int, end: int) -> list[bytes]:
    """After these steps."""
    for step in range(begin, end):
        layer.optimizer.zero_grad()
        layer.backward(step)
        layer.optimizer.step()
    if hasattr(layer.optimizer, "finish"):
        layer.optimizer.finish()
    return [raw(layer.weight), raw(layer.bias)]


def checkpoint(path: Any, layer: Layer, **options: Any) -> md.Checkpoint:
    model = torch.nn.ParameterDict({"weight": layer.weight, "bias": layer.bias})
    return md.Checkpoint(path, model=model, optimizer=layer.optimizer, **options)


WITH_AUTO = {"weight": Truncated(bytes_kept=2, force=True), "*": md.Compression.auto(force=True)}
RESUMED = [*((name, 0) for name in CODECS), ("dict with auto", 0), ("python", 2)]


@check(min_size=2, cases=RESUMED)
def resumed_training_has_the_bits_of_the_uninterrupted_one(name: str, rounds: int) -> None:
    """`rounds`: steps between two rounds of LocalSGD; 0 for encoded gradients."""
    compression = WITH_AUTO if name == "dict with auto" else CODECS[name][0](True)
    options = {"communication": md.LocalSGD(rounds)} if rounds else {}
    wanted = trained(Layer(compression, **options), 0, 6)
    with folder() as path:
        saving = Layer(compression, **options)
        trained(saving, 0, 4)
        with checkpoint(path, saving) as saver:
            saver.save(4)
        for earlier in (0, 3):
            resumed = Layer(compression, **options)
            trained(resumed, 0, earlier)
            with caught() as texts, checkpoint(path, resumed) as loader:
                assert loader.step == 4
            assert texts == []
            assert trained(resumed, 4, 6) == wanted, f"after {earlier} other steps"


@check(min_size=3, cases=BY_NAME)
def at_another_size_residuals_are_dropped_with_one_warning(name: str) -> None:
    make, _ = CODECS[name]
    size = md.size()
    with folder() as path, added(list(range(size - 1))) as (fewer,):
        if md.rank() < size - 1:
            saving = Layer(make(True), process_set=fewer)
            trained(saving, 0, 2)
            with checkpoint(path, saving, process_set=fewer) as saver:
                saver.save(2)
        restored = Layer(make(True))
        with caught() as texts, checkpoint(path, restored) as loader:
            assert loader.step == 2
        said = [text for of_rank in md.allgather_object(texts) for text in of_rank]
        if not make(True).has_state:
            assert said == []
            return
        (text,) = said
        assert f"was saved by {size - 1} ranks and is restored by {size}. What codecs had" in text
        assert not restored.optimizer.rank_state_dict()["codecs"]["gradients of *"]["residuals"]
        trained(restored, 2, 4)
        expect_same_bits(restored.weight, "weight")


def taken_by_auto(max_error: float, encode_ms: float, **options: Any) -> tuple[list[bytes], str]:
    """The end of training with it, and what explain() says; the costs are those of this rank."""
    costs = {
        "bf16": Cost(0.5, encode_ms, encode_ms, "sums"),
        "int8": Cost(0.25, encode_ms, encode_ms, "slices"),
    }
    auto = md.Compression.auto(max_error=max_error, force=True)
    automatic._choices.clear()
    with patch.object(automatic, "measure_candidates", lambda: costs):
        bits = trained(Layer(auto, **options), 0, 4)
    texts = [str(fact) for fact in md.explain().facts.values() if f" by {auto}" in str(fact)]
    of_ranks = md.allgather_object(texts)
    (text,) = of_ranks[0]
    assert of_ranks == [[text]] * md.size()
    return bits, text


@check(
    min_size=2,
    cases=[("int8", 0.01, 0), ("bf16", 0.003, 0), ("none", 0.001, 0), ("int8", 0.01, 2)],
)
def auto_goes_on_as_what_it_takes(wanted: str, max_error: float, rounds: int) -> None:
    options = {"communication": md.LocalSGD(rounds)} if rounds else {}
    bits, text = taken_by_auto(max_error, 0.0, **options)
    assert text.startswith(f"Fact(choice='{wanted}") and "Gbit/s" in text, text
    chosen = getattr(md.Compression, wanted)
    chosen = chosen(force=True) if wanted == "int8" else chosen
    assert bits == trained(Layer(chosen, **options), 0, 4)


@check(min_size=2)
def the_slowest_rank_counts_for_auto() -> None:
    bits, text = taken_by_auto(0.01, 1e6 if md.rank() == md.size() - 1 else 0.0)
    assert "choice='none" in text, text
    assert bits == trained(Layer(md.Compression.none), 0, 4)


@check(min_size=2)
def auto_measures_where_there_are_several_hosts() -> None:
    automatic._choices.clear()
    layer = Layer(md.Compression.auto())
    expect_same_bits(layer.synchronize(), "gradient")
    one_host = len(set(_C.topology().hosts)) == 1
    facts = [str(fact) for fact in md.explain().facts.values()]
    measured = [fact for fact in facts if "auto" in fact and "Gbit/s" in fact]
    assert bool(measured) != one_host, facts
    assert any("auto(max_error=0.01) is not used" in fact for fact in facts) == one_host, facts


@check(min_size=3)
def a_host_has_one_vote() -> None:
    """Of the sum of its ranks, which add up exact values."""
    hosts = _C.topology().hosts
    if len(set(hosts)) == 1:
        raise NotHereError("all ranks are on one host, where nothing is encoded")
    grad = Layer(md.Compression.signsgd()).synchronize()
    sums = {host: torch.zeros(ROWS, WIDTH, dtype=torch.float64) for host in hosts}
    for rank, host in enumerate(hosts):
        sums[host] += gradients_of(rank, 0)[0]
    majority(grad.double(), torch.stack(list(sums.values())))
