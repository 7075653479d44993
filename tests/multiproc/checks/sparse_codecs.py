"""Codecs that do not send all values, on real ranks: what arrives and what is kept is the input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import mydist as md
from multiproc.checks.codecs import Layer, expect_same_bits, gradients_of, mean_of
from multiproc.checks.models import raises
from multiproc.reference import raw
from multiproc.registry import NotHereError, check
from mydist import _C
from mydist.codecs.codec import Codec

C = md.Compression
CODECS: dict[str, Callable[[bool], Codec]] = {
    "topk": lambda force: C.topk(0.02, force=force),
    "threshold": lambda force: C.threshold(2.5, force=force),
    "randomk": lambda force: C.randomk(0.02, force=force),
    "powersgd": lambda force: C.powersgd(rank=3, force=force),
}
BY_NAME = [(name,) for name in CODECS]
WITH_MOMENTUM = [*BY_NAME, ("dgc",)]


def codec_of(name: str, force: bool = True) -> Codec:
    return C.dgc(0.02, momentum=0.5, force=force) if name == "dgc" else CODECS[name](force)


def residual_of(layer: Layer) -> torch.Tensor:
    """Of the weight, of the mean gradient."""
    state = layer.optimizer.rank_state_dict()["codecs"]["gradients of *"]
    own = state["residuals"]["weight"]["tensors"]["sent"].double()
    return md.allreduce(own, name="residual").view(layer.weight.shape)


@check(min_size=2, cases=BY_NAME)
def what_arrived_and_what_is_kept_is_what_was_given(name: str) -> None:
    layer = Layer(codec_of(name))
    arrived = torch.zeros(layer.weight.shape, dtype=torch.float64)
    given = arrived.clone()
    for step in range(6):
        grad = layer.synchronize(step)
        expect_same_bits(grad, "gradient")
        assert grad.count_nonzero() > 0 and raw(grad) != raw(mean_of(step)[0].float())
        arrived += grad.double()
        given += mean_of(step)[0]
        assert (arrived + residual_of(layer) - given).abs().max() < 2e-5, step
        assert layer.bias.grad is not None
        assert (layer.bias.grad.double() - mean_of(step)[1]).abs().max() < 1e-6


@check(min_size=2, cases=BY_NAME)
def what_is_kept_has_its_effect_at_another_rate(name: str) -> None:
    layer = Layer(codec_of(name))
    layer.synchronize(0)
    kept = residual_of(layer)
    layer.optimizer.param_groups[0]["lr"] /= 4
    arrived = layer.synchronize(1).double()
    assert (arrived + residual_of(layer) - mean_of(1)[0] - 4 * kept).abs().max() < 2e-5


@check(min_size=2, cases=[("topk",), ("randomk",), ("threshold",)])
def all_values_give_the_bits_of_no_codec(name: str) -> None:
    make: dict[str, Codec] = {
        "topk": C.topk(1, force=True),
        "randomk": C.randomk(1, force=True),
        "threshold": C.threshold(1e-30, force=True),
    }
    layer, plain = Layer(make[name]), Layer(C.none)
    for step in range(2):
        grad, expected = layer.synchronize(step), plain.synchronize(step)
        if md.size() == 2:  # More summands may be added up in another order.
            assert raw(grad) == raw(expected)
        else:
            assert (grad - expected).abs().max() < 1e-6


@check(min_size=2)
def a_payload_may_be_empty() -> None:
    """Nothing reaches the threshold, on one rank or on all."""
    layer = Layer(C.threshold(50.0, force=True))
    assert not layer.synchronize().any()
    layer.optimizer.zero_grad()
    layer.backward(1, 200.0 if md.rank() == 0 else None)
    layer.optimizer.synchronize()
    assert layer.weight.grad is not None
    assert layer.weight.grad.count_nonzero() == 1
    first = 200.0 + float(gradients_of(0, 0)[0][0, 0])
    assert abs(float(layer.weight.grad[0, 0]) * md.size() - first) < 1e-4


@check(min_size=2, cases=WITH_MOMENTUM)
def a_step_that_is_not_finite_leaves_no_trace(name: str) -> None:
    """One rank has an infinite or a NaN value: all ranks see it, and keep what they have."""
    layer, other = Layer(codec_of(name)), Layer(codec_of(name))
    for step, bad in enumerate((float("inf"), float("nan"), 3e38)):
        assert raw(layer.synchronize(step)) == raw(other.synchronize(step))
        before = layer.optimizer.rank_state_dict()
        layer.optimizer.zero_grad()
        layer.backward(step, bad if md.rank() == md.size() - 1 else None)
        layer.optimizer.synchronize()
        assert layer.weight.grad is not None
        if bad < 1e39:
            continue  # Large but finite: it may arrive, and counts then.
        assert not torch.isfinite(layer.weight.grad).all()
        assert str(before) == str(layer.optimizer.rank_state_dict())


@check(min_size=2, cases=WITH_MOMENTUM)
def a_raw_gradient_that_is_not_finite_leaves_no_trace(name: str) -> None:
    layer = Layer(codec_of(name))
    layer.synchronize()
    before = layer.optimizer.rank_state_dict()
    layer.optimizer.zero_grad()
    (layer.weight.sum() + layer.bias.sum() * float("inf")).backward()
    layer.optimizer.synchronize()
    assert str(before) == str(layer.optimizer.rank_state_dict())


@check(min_size=2, cases=WITH_MOMENTUM)
def a_state_that_is_loaded_goes_on_with_the_same_bits(name: str) -> None:
    layer, later = Layer(codec_of(name)), Layer(codec_of(name))
    for step in range(3):
        layer.synchronize(step)
    assert not later.optimizer.load_rank_state_dict(layer.optimizer.rank_state_dict())
    for step in range(3, 6):
        assert raw(layer.synchronize(step)) == raw(later.synchronize(step)), step
        assert layer.bias.grad is not None and later.bias.grad is not None
        assert raw(layer.bias.grad) == raw(later.bias.grad), step


@check(min_size=2)
def powersgd_is_the_algorithm_of_the_paper() -> None:
    """Against float64; columns of P may be at other angles, but span the same."""
    rank, steps = 3, 5
    layer = Layer(C.powersgd(rank, force=True))
    errors = [torch.zeros(layer.weight.shape, dtype=torch.float64) for _ in range(md.size())]
    q = None
    for step in range(steps):
        grad = layer.synchronize(step)
        state = layer.optimizer.rank_state_dict()["codecs"]["gradients of *"]
        ms = [gradients_of(r, step)[0].double() + errors[r] for r in range(md.size())]
        if q is None:  # The first one is drawn, so the reference begins behind it.
            q = state["residuals"]["weight"]["tensors"]["q"].double().view(rank, -1).T
            own = state["residuals"]["weight"]["tensors"]["sent"].double().view(grad.shape)
            flat = md.allgather(own[None], name="errors")
            errors = list(flat)
            continue
        p, _ = torch.linalg.qr(sum(m @ q for m in ms))
        qs = [m.T @ p for m in ms]
        q = sum(qs)
        expected = p @ q.T / md.size()
        assert (grad.double() - expected).abs().max() < 2e-5, step
        errors = [m - p @ of_rank.T for m, of_rank in zip(ms, qs, strict=True)]


@check(min_size=2)
def before_its_start_powersgd_sends_all() -> None:
    layer, plain = Layer(C.powersgd(start=2, force=True)), Layer(C.none)
    for step in range(3):
        grad, expected = layer.synchronize(step), plain.synchronize(step)
        assert ((grad - expected).abs().max() < 1e-6) == (step < 2), step


@check(min_size=2)
def seeds_decide_what_is_drawn() -> None:
    layers = [Layer(C.randomk(0.02, seed=seed, force=True)) for seed in (1, 1, 2)]
    state = torch.get_rng_state()
    first, same, other = (raw(layer.synchronize()) for layer in layers)
    assert first == same != other
    assert torch.equal(torch.get_rng_state(), state)


@check(min_size=2)
def dgc_gives_its_momentum_to_what_travels_raw() -> None:
    """All of a bias, and the weights where nothing is encoded, as SGD with momentum has it."""
    layer = Layer(C.dgc(1, momentum=0.5))
    weight_u, bias_u = (torch.zeros_like(t, dtype=torch.float64) for t in mean_of(0))
    for step in range(3):
        grad = layer.synchronize(step)
        weight, bias = mean_of(step)
        weight_u, bias_u = weight_u * 0.5 + weight, bias_u * 0.5 + bias
        assert layer.bias.grad is not None
        assert (layer.bias.grad.double() - bias_u).abs().max() < 1e-5
        if len(set(_C.topology().hosts)) == 1:
            assert (grad.double() - weight_u).abs().max() < 1e-5


@check(min_size=2)
def dgc_with_another_momentum_is_refused() -> None:
    weight, bias = (torch.nn.Parameter(torch.zeros(64, 80)) for _ in range(2))
    groups = [{"params": [bias], "momentum": 0.0}, {"params": [weight], "momentum": 0.9}]
    named = [("weight", weight), ("bias", bias)]

    def wrap(plain: torch.optim.Optimizer, compression: Any) -> Any:
        return md.DistributedOptimizer(plain, named, compression)

    group_1 = ("dgc(ratio=0.001, momentum=0.9", "group 1 has momentum=0.9")
    raises(lambda: wrap(torch.optim.SGD(groups, lr=0.1), C.dgc()), *group_1)
    wrap(torch.optim.SGD(groups, lr=0.1), {"bias": C.dgc(), "*": C.none})
    adam = torch.optim.Adam([weight, bias])
    raises(lambda: wrap(adam, C.dgc()), "group 0 has betas=(0.9, 0.999)")
    both = torch.optim.SGD([weight, bias], lr=0.1)
    mixed = {"bias": C.dgc(), "*": C.topk()}
    raises(lambda: wrap(both, mixed), "group 0 has parameters with topk(ratio=0.01)")
    one = wrap(torch.optim.SGD([weight], lr=0.1), C.dgc())
    later = {"params": [bias], "momentum": 0.9}
    raises(lambda: one.add_param_group(later), "group 1 has momentum=0.9")
    assert len(one.param_groups) == 1


@check(min_size=2, cases=[(C.dgc(), "a momentum of gradients"), (C.powersgd(), "flat vectors")])
def a_codec_of_no_use_for_a_strategy_is_refused(codec: Codec, why: str) -> None:
    raises(lambda: Layer(codec, communication=md.LocalSGD(2)), str(codec), why)


@check(min_size=2, cases=WITH_MOMENTUM)
def few_bytes_leave_a_host(name: str) -> None:
    if len(set(_C.topology().hosts)) == 1:
        raise NotHereError("all ranks are on one host, where nothing is encoded")
    before = md.stats()
    layer = Layer(codec_of(name, force=False))
    expect_same_bits(layer.synchronize(), "gradient")
    raw_bytes, wire_bytes = (
        md.stats()[key] - before[key] for key in ("codec_raw_bytes", "codec_wire_bytes")
    )
    assert 0 < wire_bytes < 0.2 * raw_bytes, (wire_bytes, raw_bytes)
