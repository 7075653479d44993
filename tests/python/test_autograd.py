"""Gradients through collectives in a job of one rank, where the adjoint is known by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import mydist as md

pytestmark = pytest.mark.usefixtures("job")

COLLECTIVES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], float]] = {
    "allreduce": (md.allreduce, 1.0),
    "allreduce sum": (lambda x: md.allreduce(x, op=md.Sum), 1.0),
    "allreduce scaled": (
        lambda x: md.allreduce(x, op=md.Sum, prescale_factor=3.0, postscale_factor=0.5),
        1.5,
    ),
    "grouped allreduce": (lambda x: md.grouped_allreduce([torch.ones(2), x])[1], 1.0),
    "allgather": (md.allgather, 1.0),
    "grouped allgather": (lambda x: md.grouped_allgather([x, torch.ones(2)])[0], 1.0),
    "broadcast": (lambda x: md.broadcast(x, 0), 1.0),
    "alltoall": (lambda x: torch.as_tensor(md.alltoall(x)), 1.0),
    "alltoall with splits": (lambda x: md.alltoall(x, [x.shape[0]])[0], 1.0),
    "reducescatter": (lambda x: md.reducescatter(x, postscale_factor=4.0), 4.0),
    "grouped reducescatter": (lambda x: md.grouped_reducescatter([x, torch.ones(2)])[0], 1.0),
}


@pytest.mark.parametrize(("call", "scale"), COLLECTIVES.values(), ids=COLLECTIVES.keys())
def test_backward_is_the_adjoint(
    call: Callable[[torch.Tensor], torch.Tensor], scale: float
) -> None:
    x = torch.randn(4, 3, requires_grad=True)
    weights = torch.randn(4, 3)
    out = call(x)
    assert out.requires_grad and torch.equal(out, x * scale)
    (out * weights).sum().backward()
    assert x.grad is not None and torch.equal(x.grad, weights * scale)


@pytest.mark.parametrize(("call", "scale"), COLLECTIVES.values(), ids=COLLECTIVES.keys())
def test_nothing_is_recorded_when_no_gradient_is_wanted(
    call: Callable[[torch.Tensor], torch.Tensor], scale: float
) -> None:
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
