"""Codecs on real ranks: sums of encoded gradients, what is kept, and what travels as it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import mydist as md
from multiproc.checks.models import raises
from multiproc.reference import raw
from multiproc.registry import NotHereError, check
from mydist import _C

# Takes a reduced gradient and those of all ranks, stacked, and fails if they do not fit together.
Fit = Callable[[torch.Tensor, torch.Tensor], None]


def within(share: float) -> Fit:
    """Each value is as near to the mean as this share of the largest."""

    def expect(grad: torch.Tensor, gradients: torch.Tensor) -> None:
        worst = (grad - gradients.mean(0)).abs().max()
        assert 0 < worst <= gradients.abs().max() * share * 1.01, worst

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
