"""Steps in which gradients are sparse or frozen, or a codec fails."""

from __future__ import annotations

from typing import ClassVar

import torch

import mydist as md
from multiproc.checks.codecs import ROWS, WIDTH, NonZeros, expect_same_bits, gradients_of
from multiproc.checks.models import raises
from multiproc.reference import raw
from multiproc.registry import check


class Failing(NonZeros):
    """Raises while it is told to."""

    fails: ClassVar[bool] = False

    def encode(self, values: torch.Tensor) -> torch.Tensor:
        if Failing.fails:
            raise ValueError("cannot encode")
        return super().encode(values)


class Pair:
    """Two weights with a codec each, of which the second may fail."""

    def __init__(self) -> None:
        self.weights = [torch.nn.Parameter(torch.zeros(ROWS, WIDTH)) for _ in range(2)]
        self.optimizer = md.DistributedOptimizer(
            torch.optim.SGD(self.weights, lr=0.5),
            [("second", self.weights[0]), ("first", self.weights[1])],
            {"second": Failing(force=True), "*": md.Compression.int8(force=True)},
        )

    def backward(self, step: int) -> None:
        self.optimizer.zero_grad()
        gradient, _ = gradients_of(md.rank(), step)
        sum((weight * gradient).sum() for weight in self.weights).backward()  # type: ignore[union-attr]

    def synchronize(self, step: int) -> list[bytes]:
        self.backward(step)
        self.optimizer.synchronize()
        return [raw(weight.grad) for weight in self.weights if weight.grad is not None]


@check(min_size=2)
def a_step_in_which_a_codec_fails_leaves_nothing_behind() -> None:
    """It fails in the first step, which makes buckets, and later in backward."""
    layer, other = Pair(), Pair()
    try:
        Failing.fails = True
        layer.backward(0)
        raises(layer.optimizer.synchronize, "cannot encode")
        Failing.fails = False
        assert layer.synchronize(1) == other.synchronize(1)
        Failing.fails = True
        layer.backward(2)
        raises(layer.optimizer.synchronize, "cannot encode")
    finally:
        Failing.fails = False
    for step in (3, 4):
        assert layer.synchronize(step) == other.synchronize(step), step


@check(min_size=2)
def what_is_frozen_is_not_sent() -> None:
    layer, sent = Pair(), []
    for frozen in (False, True, False):
        layer.weights[1].requires_grad_(not frozen)
        before = md.stats()["codec_wire_bytes"]
        assert len(layer.synchronize(0)) == 2 - frozen
        sent.append(md.stats()["codec_wire_bytes"] - before)
    assert 0 < sent[1] < sent[0] == sent[2], sent


class Words:
    """A layer with sparse gradients, large enough to be encoded if they were dense."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.words = torch.nn.Embedding(64, 80, sparse=True)
        self.weight = torch.nn.Parameter(torch.zeros(ROWS, WIDTH))
        self.optimizer = md.DistributedOptimizer(
            torch.optim.SGD([self.words.weight, self.weight], lr=0.5),
            [("words", self.words.weight), ("weight", self.weight)],
            md.Compression.int8(force=True),
        )

    def reduced(self, ranks: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        """The gradient of the words, which these ranks use, and what it has to be."""
        self.optimizer.zero_grad()
        loss = (self.weight * gradients_of(md.rank(), 0)[0]).sum()
        if md.rank() in ranks:
            loss = loss + self.words(torch.tensor([md.rank(), 5, 5])).sum() * (md.rank() + 1)
        loss.backward()
        self.optimizer.synchronize()
        expected = torch.zeros(64, 80)
        for rank in ranks:
            for row in (rank, 5, 5):
                expected[row] += (rank + 1) / md.size()
        assert self.words.weight.grad is not None
        return self.words.weight.grad, expected


@check(min_size=2)
def a_sparse_gradient_travels_as_it_is() -> None:
    """On ranks that have not used its layer, too, in the first step and in later ones."""
    layer, everyone = Words(), list(range(md.size()))
    for ranks in (everyone[1:], everyone, everyone[:1], []):
        grad, expected = layer.reduced(ranks)
        assert grad.is_sparse
        torch.testing.assert_close(grad.to_dense(), expected, rtol=1e-6, atol=0)
        with layer.optimizer.skip_synchronize():
            layer.optimizer.step()
        expect_same_bits(layer.words.weight, "words")


@check(min_size=2)
def a_gradient_that_was_dense_at_first_is_encoded_when_it_is_sparse() -> None:
    """No rank used the layer in the first step, so none knew."""
    layer = Words()
    layer.reduced([])
    grad, expected = layer.reduced([md.size() - 1])
    assert (grad.to_dense() - expected).abs().max() <= expected.max() / 100
    expect_same_bits(grad, "gradient")
