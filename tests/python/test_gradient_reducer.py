"""The C++ gradient reducer: when gradients are enqueued, what they become, and misuse of it."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import mydist as md
from mydist import _C

pytestmark = pytest.mark.usefixtures("job")


def make(
    op: md.ReduceOp = md.Sum, postscale: float = 2.0, compression: int = 0, passes: int = 1
) -> _C.GradientReducer:
    """A reducer whose work shows in the result even with one rank: everything is doubled."""
    return _C.GradientReducer(int(op), 1.0, postscale, compression, passes, 0)


def parameter(*shape: int, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.ones(shape or (3,), dtype=dtype))


def test_backward_enqueues_and_synchronize_writes_back() -> None:
    reducer, weight = make(), parameter()
    reducer.add_parameter(weight, "weight", "", 0)
    assert reducer.pending() == []
    (weight * torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    gradient = weight.grad
    assert reducer.pending() == ["weight"]
    reducer.synchronize()
    assert weight.grad is gradient and reducer.pending() == []
    assert weight.grad is not None and weight.grad.tolist() == [2.0, 4.0, 6.0]


def test_synchronize_takes_what_is_there_after_fewer_passes() -> None:
    reducer, weight = make(passes=3), parameter()
    reducer.add_parameter(weight, "weight", "", 0)
    weight.sum().backward()
    reducer.synchronize()
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * 3
    reducer.set_backward_passes_per_step(1)
    weight.grad = None
    weight.sum().backward()
    assert reducer.pending() == ["weight"]
    reducer.synchronize()


def test_reset_forgets_counted_passes() -> None:
    reducer, weight = make(passes=2), parameter()
    reducer.add_parameter(weight, "weight", "", 0)
    weight.sum().backward()
    reducer.reset()
    weight.sum().backward()
    assert reducer.pending() == []


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda p: setattr(p, "grad", None), r"'w' was replaced or cleared between backward and"),
        (lambda p: setattr(p, "grad", p.grad.clone()), r"'w' was replaced or cleared between"),
        (lambda p: setattr(p.grad, "data", p.grad.clone()), r"'w' was replaced or cleared"),
        (lambda p: p.grad.zero_(), r"'w' was changed in place between backward and step"),
        (lambda p: p.grad.mul_(0.5), r"'w' was changed in place.*optimizer\.synchronize\(\)"),
        (lambda p: torch.nn.utils.clip_grad_norm_([p], 0.1), r"'w' was changed in place"),
    ],
    ids=["set to none", "another tensor", "other memory", "zeroed", "scaled", "clipped"],
)
def test_touching_a_gradient_in_flight_is_found(spoil: Any, text: str) -> None:
    reducer, weight = make(), parameter()
    reducer.add_parameter(weight, "w", "", 0)
    weight.sum().backward()
    spoil(weight)
    with pytest.raises(ValueError, match=text):
        reducer.synchronize()
    weight.grad = None
    weight.sum().backward()
    reducer.synchronize()
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * 3  # type: ignore[unreachable]


def test_a_single_rank_leaves_unused_parameters_without_gradient() -> None:
    reducer, used, unused = make(), parameter(), parameter()
    reducer.add_parameter(used, "used", "", 0)
    reducer.add_parameter(unused, "unused", "", 0)
    used.sum().backward()
    reducer.synchronize()
    assert unused.grad is None


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.complex64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    reducer, weight = make(compression=1), parameter(dtype=dtype)
    reducer.add_parameter(weight, "weight", "", 0)
    (weight.real if dtype.is_complex else weight).sum().backward()
    reducer.synchronize()
    assert weight.grad is not None and weight.grad.dtype == dtype
    assert weight.grad.real.tolist() == [2.0] * 3


def test_remove_unregisters_the_hooks() -> None:
    reducer, weight = make(), parameter()
    reducer.add_parameter(weight, "weight", "", 0)
    weight.sum().backward()
    reducer.remove()
    weight.grad = None
    weight.sum().backward()
    weight.sum().backward()
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * 3
    assert reducer.pending() == []  # type: ignore[unreachable]


def test_nothing_is_kept_alive_by_the_hooks() -> None:
    reducer, weight = make(), parameter()
    reducer.add_parameter(weight, "weight", "", 0)
    weight.sum().backward()
    reducer.synchronize()
    gone = weakref.ref(weight)
    del reducer, weight
    gc.collect()
    assert gone() is None


def non_leaf() -> torch.Tensor:
    return torch.ones(3, requires_grad=True) * 2


@pytest.mark.parametrize(
    ("tensor", "name", "error", "text"),
    [
        (parameter(), "", ValueError, r"parameter: the name is empty"),
        (parameter(), "n" * 5000, ValueError, r"parameter: the name .* has 5000 bytes"),
        (parameter(), "taken", ValueError, r"two parameters are named 'taken'"),
        (non_leaf(), "x", ValueError, r"parameter 'x' is not a leaf tensor"),
        (torch.empty(2, device="meta"), "x", ValueError, r"parameter 'x': it is on the meta"),
        (torch.empty(2, dtype=torch.uint16), "x", TypeError, r"parameter 'x': dtype uint16 is not"),
    ],
)
def test_wrong_parameters(
    tensor: torch.Tensor, name: str, error: type[Exception], text: str
) -> None:
    reducer, known = make(), parameter()
    reducer.add_parameter(known, "taken", "", 0)
    with pytest.raises(error, match=text):
        reducer.add_parameter(tensor, name, "", 0)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((9, 1.0, 1.0, 0, 1, 0), r"op 9 is unknown"),
        ((-1, 1.0, 1.0, 0, 1, 0), r"op -1 is unknown"),
        ((1, 1.0, 1.0, 3, 1, 0), r"compression 3 is unknown, expected 0, 1 or 2"),
        ((1, 1.0, 1.0, 0, 0, 0), r"backward_passes_per_step is 0, expected at least 1"),
        ((1, 1.0, 1.0, 0, 1, 5), r"process set 5 is unknown or has been removed"),
    ],
)
def test_wrong_options(arguments: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _C.GradientReducer(*arguments)


def test_synchronize_after_shutdown_says_so_and_recovers() -> None:
    reducer, weight = make(), parameter()
    reducer.add_parameter(weight, "weight", "", 0)
    weight.sum().backward()
    md.shutdown()
    with pytest.raises(ValueError, match=r"call mydist\.init\(\)"):
        reducer.synchronize()
    weight.grad = None
    reducer.remove()
    md.init()
    reducer.add_parameter(weight, "weight", "", 0)
    weight.sum().backward()
    reducer.synchronize()
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * 3  # type: ignore[unreachable]


@pytest.mark.parametrize("compression", [0, 1])
@pytest.mark.parametrize("views", [True, False])
@pytest.mark.parametrize("shared", ["all", "a part"])
def test_gradients_to_which_autograd_gave_one_memory_are_reduced_once(
    views: bool, compression: int, shared: str
) -> None:
    reducer = make(compression=compression)
    reducer.set_buffer_views(views)
    shapes = ((2, 3), (3, 2)) if shared == "all" else ((3,),) * 4
    weights = [parameter(*shape) for shape in shapes]
    half = len(weights) // 2
    # More than is fused: the others are in buckets and batches of their own.
    between = parameter(17_000_000)
    for index, weight in enumerate([*weights[:half], between, *weights[half:]]):
        reducer.add_parameter(weight, str(index), "", 0)
    factor = torch.arange(1.0, 7.0)
    for _ in range(3):
        for weight in (*weights, between):
            weight.grad = None
        first, second = (
            torch.cat([weight.view(-1) for weight in of]) if half > 1 else of[0].view(-1)
            for of in (weights[:half], weights[half:])
        )
        ((factor * (first + second)).sum() + between.sum()).backward()
        reducer.synchronize()
        for index, weight in enumerate(weights):
            assert weight.grad is not None
            expected = factor * 2 if half == 1 else factor[index % 2 * 3 :][:3] * 2
            assert torch.equal(weight.grad.flatten(), expected)
    assert len(reducer.buckets()) == 3
