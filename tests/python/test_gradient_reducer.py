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


def test_the_next_step_works_as_the_first() -> None:
    reducer, weight = make(), parameter()
    reducer.add_parameter(weight, "weight", "", 0)
    for step in range(3):
        weight.grad = None
        (weight * float(step)).sum().backward()
        reducer.synchronize()
        assert weight.grad.tolist() == [2.0 * step] * 3  # type: ignore[attr-defined]


def test_backward_passes_are_counted() -> None:
    reducer, weight = make(passes=3), parameter()
    reducer.add_parameter(weight, "weight", "", 0)
    for expected in ([], [], ["weight"]):
        weight.sum().backward()
        assert reducer.pending() == expected
    reducer.synchronize()
    assert weight.grad is not None and weight.grad.tolist() == [6.0] * 3


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


@pytest.mark.parametrize("passes", [1, 2])
def test_one_backward_too_many_names_the_parameter(passes: int) -> None:
    reducer, weight = make(passes=passes), parameter()
    reducer.add_parameter(weight, "layer.weight", "", 0)
    for _ in range(passes):
        weight.sum().backward()
    text = (
        r"Gradient of 'layer\.weight' was computed more than backward_passes_per_step "
        rf"\({passes}\) times since the last step"
    )
    with pytest.raises(ValueError, match=text):
        weight.sum().backward()
    reducer.set_enabled(False)
    with pytest.raises(ValueError, match=text):
        weight.sum().backward()


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


def test_disabled_it_only_lets_gradients_accumulate() -> None:
    reducer, weight = make(), parameter()
    reducer.add_parameter(weight, "weight", "", 0)
    reducer.set_enabled(False)
    weight.sum().backward()
    weight.sum().backward()
    assert reducer.pending() == []
    reducer.set_enabled(True)
    weight.sum().backward()
    reducer.synchronize()
    assert weight.grad is not None and weight.grad.tolist() == [6.0] * 3


@pytest.mark.parametrize(("compression", "wire"), [(1, torch.float16), (2, torch.bfloat16)])
def test_compression_rounds_once_and_keeps_the_dtype(compression: int, wire: torch.dtype) -> None:
    reducer, weight = make(postscale=1.0, compression=compression), parameter(50)
    reducer.add_parameter(weight, "weight", "", 0)
    values = torch.linspace(0.1, 3.0, 50)
    (weight * values).sum().backward()
    reducer.synchronize()
    assert weight.grad is not None and weight.grad.dtype == torch.float32
    assert torch.equal(weight.grad, values.to(wire).float())


def test_gradients_of_any_layout_are_written_back() -> None:
    reducer = make()
    weight = torch.nn.Parameter(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
    reducer.add_parameter(weight, "weight", "", 0)
    factor = torch.arange(96.0).reshape(2, 3, 4, 4)
    (weight * factor).sum().backward()
    assert weight.grad is not None and not weight.grad.is_contiguous()
    reducer.synchronize()
    assert torch.equal(weight.grad, factor * 2)


@pytest.mark.parametrize("compression", [0, 1])
@pytest.mark.parametrize("views", [True, False])
def test_gradients_to_which_autograd_gave_one_memory_are_reduced_once(
    views: bool, compression: int
) -> None:
    reducer = make(compression=compression)
    reducer.set_buffer_views(views)
    first, second = (torch.nn.Parameter(torch.ones(shape)) for shape in ((2, 3), (3, 2)))
    between = parameter(5_000_000)  # Fills a bucket of its own.
    for name, weight in (("first", first), ("between", between), ("second", second)):
        reducer.add_parameter(weight, name, "", 0)
    factor = torch.arange(6.0)
    for _ in range(3):
        first.grad = second.grad = between.grad = None
        shared = (factor * (first.view(-1) + second.view(-1))).sum()
        (shared + between.sum()).backward()
        reducer.synchronize()
        for weight in (first, second):
            assert weight.grad is not None and torch.equal(weight.grad.flatten(), factor * 2)
    assert len(reducer.buckets()) == 3


@pytest.mark.parametrize("compression", [0, 1])
@pytest.mark.parametrize("views", [True, False])
def test_gradients_that_are_one_part_of_a_larger_memory_are_reduced_once(
    views: bool, compression: int
) -> None:
    reducer = make(compression=compression)
    reducer.set_buffer_views(views)
    weights = [parameter() for _ in range(4)]
    between = parameter(17_000_000)  # More than is fused: the others are in batches of their own.
    for index, weight in enumerate([*weights[:2], between, *weights[2:]]):
        reducer.add_parameter(weight, str(index), "", 0)
    factor = torch.arange(1.0, 7.0)
    for _ in range(2):
        for weight in (*weights, between):
            weight.grad = None
        shared = (factor * (torch.cat(weights[:2]) + torch.cat(weights[2:]))).sum()
        (shared + between.sum()).backward()
        reducer.synchronize()
        for index, weight in enumerate(weights):
            assert weight.grad is not None
            assert torch.equal(weight.grad, factor[index % 2 * 3 :][:3] * 2)


def test_tied_parameters_are_reduced_once() -> None:
    reducer, weight = make(), parameter()
    reducer.add_parameter(weight, "encoder", "", 0)
    reducer.add_parameter(weight, "decoder", "", 0)
    (weight.sum() + 2 * weight.sum()).backward()
    assert reducer.pending() == ["encoder"]
    reducer.synchronize()
    assert weight.grad is not None and weight.grad.tolist() == [6.0] * 3


def test_data_may_be_replaced() -> None:
    reducer, weight = make(), parameter()
    reducer.add_parameter(weight, "weight", "", 0)
    weight.data = torch.full((3,), 5.0)
    (weight**2).sum().backward()
    reducer.synchronize()
    assert weight.grad is not None and weight.grad.tolist() == [20.0] * 3


def test_frozen_parameters_are_left_out_until_unfrozen() -> None:
    reducer, weight = make(), parameter()
    weight.requires_grad_(False)
    reducer.add_parameter(weight, "weight", "", 0)
    assert not weight.requires_grad
    reducer.synchronize()
    weight.requires_grad_(True)
    weight.sum().backward()
    assert reducer.pending() == ["weight"]
    reducer.synchronize()
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * 3


def test_a_single_rank_leaves_unused_parameters_without_gradient() -> None:
    reducer, used, unused = make(), parameter(), parameter()
    reducer.add_parameter(used, "used", "", 0)
    reducer.add_parameter(unused, "unused", "", 0)
    used.sum().backward()
    reducer.synchronize()
    assert unused.grad is None


def test_groups_wait_for_all_members() -> None:
    reducer, first, second = make(), parameter(), parameter(2)
    reducer.add_parameter(first, "first", "pair", 2)
    reducer.add_parameter(second, "second", "pair", 2)
    first.sum().backward()
    second.sum().backward()
    reducer.synchronize()
    assert first.grad is not None and first.grad.tolist() == [2.0] * 3
    assert second.grad is not None and second.grad.tolist() == [2.0] * 2


def embedding(reducer: _C.GradientReducer, group: str = "") -> torch.nn.Embedding:
    table = torch.nn.Embedding(4, 2, sparse=True)
    reducer.add_parameter(table.weight, "table.weight", group, 1)
    return table


def rows(gradient: torch.Tensor | None) -> list[float]:
    assert gradient is not None
    return gradient.to_dense()[:, 0].tolist()


@pytest.mark.parametrize("as_dense", [False, True])
def test_sparse_gradients_are_gathered_or_made_dense(as_dense: bool) -> None:
    reducer = make()
    table = embedding(reducer)
    reducer.set_sparse_as_dense(as_dense)
    for _ in range(2):
        table.weight.grad = None
        table(torch.tensor([1, 1, 3])).sum().backward()
        assert reducer.pending() == ["table.weight"]
        reducer.synchronize()
        gradient = table.weight.grad
        assert gradient is not None and gradient.is_sparse != as_dense
        assert rows(gradient) == [0.0, 4.0, 0.0, 2.0]
        if not as_dense:
            assert gradient.is_coalesced() and gradient.indices().tolist() == [[1, 3]]


@pytest.mark.parametrize(
    ("op", "group", "text"),
    [
        (md.Max, "", r"op Max cannot reduce.*Average and Sum.*sparse_as_dense=True"),
        (md.Min, "", r"op Min cannot reduce"),
        (md.Product, "", r"op Product cannot reduce"),
        (md.Sum, "pair", r"but in a group.*leave it out of `groups`.*sparse_as_dense=True"),
    ],
)
def test_sparse_gradients_are_refused(op: md.ReduceOp, group: str, text: str) -> None:
    reducer = make(op=op)
    table = embedding(reducer, group)
    with pytest.raises(ValueError, match=r"gradient of 'table\.weight' is sparse, .*" + text):
        table(torch.tensor([1])).sum().backward()


def test_compressed_sparse_sums_keep_their_dtype() -> None:
    reducer = make(postscale=1.0, compression=1)
    table = embedding(reducer)
    (table(torch.tensor([0, 2])) * (1 / 3)).sum().backward()
    reducer.synchronize()
    third = torch.tensor(1 / 3).half().float().item()
    assert table.weight.grad is not None and table.weight.grad.dtype == torch.float32
    assert rows(table.weight.grad) == [third, 0.0, third, 0.0]


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda p: setattr(p, "grad", None), r"'table\.weight' was replaced or cleared"),
        (lambda p: p.grad.mul_(0.5), r"'table\.weight' was changed in place"),
    ],
    ids=["set to none", "scaled"],
)
def test_touching_a_sparse_gradient_in_flight_is_found(spoil: Any, text: str) -> None:
    reducer = make()
    table = embedding(reducer)
    table(torch.tensor([1])).sum().backward()
    spoil(table.weight)
    with pytest.raises(ValueError, match=text):
        reducer.synchronize()


def test_two_reducers_of_one_parameter() -> None:
    first, second, weight = make(), make(), parameter()
    first.add_parameter(weight, "weight", "", 0)
    second.add_parameter(weight, "by another name", "", 0)
    with pytest.raises(ValueError, match=r"already being reduced by another Distrib.*Delete the"):
        weight.sum().backward()
    first.synchronize()
    first.remove()
    weight.grad = None
    weight.sum().backward()
    second.synchronize()
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * 3  # type: ignore[unreachable]


def test_two_reducers_with_one_name() -> None:
    first, second, here, there = make(), make(), parameter(), parameter()
    first.add_parameter(here, "weight", "", 0)
    second.add_parameter(there, "weight", "", 0)
    here.sum().backward()
    with pytest.raises(ValueError, match=r"Two DistributedOptimizers have a parameter named 'wei"):
        there.sum().backward()
    first.synchronize()
    second.synchronize()
    assert there.grad is not None and there.grad.tolist() == [2.0] * 3


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


def test_a_dropped_reducer_leaves_its_parameters_usable() -> None:
    reducer, weight = make(), parameter()
    reducer.add_parameter(weight, "weight", "", 0)
    weight.sum().backward()
    del reducer
    gc.collect()
    weight.sum().backward()
    md.barrier()
    again = make()
    again.add_parameter(weight, "weight", "", 0)
    weight.grad = None
    weight.sum().backward()
    again.synchronize()
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * 3  # type: ignore[unreachable]


def test_it_runs_inside_reentrant_checkpoints() -> None:
    from torch.utils.checkpoint import checkpoint

    reducer, layer = make(), torch.nn.Linear(3, 3)
    plain = torch.nn.Linear(3, 3)
    plain.load_state_dict(layer.state_dict())
    for name, weight in layer.named_parameters():
        reducer.add_parameter(weight, name, "", 0)
    x = torch.ones(2, 3, requires_grad=True)
    checkpoint(layer, x, use_reentrant=True).sum().backward()
    plain(torch.ones(2, 3)).sum().backward()
    assert sorted(reducer.pending()) == ["bias", "weight"]
    reducer.synchronize()
    for reduced, expected in zip(layer.parameters(), plain.parameters(), strict=True):
        assert reduced.grad is not None and expected.grad is not None
        assert torch.equal(reduced.grad, 2 * expected.grad)


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
