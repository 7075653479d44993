"""Gradients through collectives in a job of one rank, where the adjoint is known by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import mydist as md

pytestmark = pytest.mark.usefixtures("job")

CALLS: list[Callable[[torch.Tensor], torch.Tensor]] = [
    md.allreduce,
    lambda x: md.grouped_allreduce([torch.ones(2), x])[1],
    md.allgather,
    lambda x: md.broadcast(x, 0),
    lambda x: md.alltoall(x, [x.shape[0]])[0],
    md.scatter,
    lambda x: md.grouped_reducescatter([x, torch.ones(2)])[0],
]


@pytest.mark.parametrize("call", CALLS)
def test_a_gradient_goes_through_where_one_is_wanted(
    call: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    x, weights = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3)
    (call(x) * weights).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, weights)
    assert not call(torch.ones(4, 3)).requires_grad
    with torch.no_grad():
        assert not call(torch.ones(4, 3, requires_grad=True)).requires_grad


@pytest.mark.parametrize("op", [md.Min, md.Max, md.Product], ids=str)
@pytest.mark.parametrize("call", [md.allreduce, md.reducescatter])
def test_operations_that_are_not_linear(call: Callable[..., torch.Tensor], op: md.ReduceOp) -> None:
    x = torch.tensor([0.0, 2.0, -3.0], dtype=torch.float64, requires_grad=True)
    out = call(x, op=op, prescale_factor=-2.0, postscale_factor=3.0)
    assert torch.equal(out, x * -6.0)
    out.sum().backward()
    assert x.grad is not None and x.grad.tolist() == [-6.0] * 3
    assert torch.autograd.gradgradcheck(lambda t: call(t**3, op=op), (x + 1.0,))


def test_adasum_has_no_gradient() -> None:
    x = torch.ones(3, requires_grad=True)
    out = md.allreduce(x, op=md.Adasum)
    with pytest.raises(
        NotImplementedError, match="allreduce with op Adasum has no gradient: .*Use"
    ):
        out.sum().backward()


def test_asynchronous_results_carry_no_gradient() -> None:
    x = torch.ones(3, requires_grad=True)
    for handle in (md.allreduce_async(x), md.allgather_async(x), md.broadcast_async(x, 0)):
        assert not md.synchronize(handle).requires_grad
