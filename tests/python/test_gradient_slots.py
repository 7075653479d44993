"""Where gradients lie while they are reduced: in memory of their own, and when they do not."""

from __future__ import annotations

import io

import pytest
import torch

import mydist as md
from mydist import _C

pytestmark = pytest.mark.usefixtures("job")


def make(compression: int = 0, passes: int = 1, views: bool = True) -> _C.GradientReducer:
    """A reducer whose work shows in the result even with one rank: everything is doubled."""
    reducer = _C.GradientReducer(int(md.Sum), 1.0, 2.0, compression, passes, 0)
    reducer.set_buffer_views(views)
    return reducer


def parameters(reducer: _C.GradientReducer, *sizes: int) -> list[torch.nn.Parameter]:
    made = [torch.nn.Parameter(torch.ones(size)) for size in sizes]
    for index, weight in enumerate(made):
        reducer.add_parameter(weight, f"p{index}", "", 0)
    return made


def gradient(weight: torch.Tensor) -> torch.Tensor:
    assert weight.grad is not None
    return weight.grad


def step(reducer: _C.GradientReducer, weights: list[torch.nn.Parameter], factor: float) -> None:
    """Adds `factor` to every gradient and doubles what is there then."""
    torch.stack([factor * weight.sum() for weight in weights]).sum().backward()
    reducer.synchronize()


def addresses(weights: list[torch.nn.Parameter]) -> list[int]:
    return [gradient(weight).data_ptr() for weight in weights]


def clear(weights: list[torch.nn.Parameter], to_none: bool) -> None:
    for weight in weights:
        if to_none:
            weight.grad = None
        else:
            gradient(weight).zero_()


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_lie_side_by_side_and_stay_there(to_none: bool) -> None:
    reducer = make()
    weights = parameters(reducer, 3, 0, 5, 4)
    step(reducer, weights, 1.0)
    first = addresses(weights)
    # Against the order of registration, as backward goes; what is empty lies nowhere.
    assert (first[2] - first[3], first[0] - first[2]) == (4 * 4, 5 * 4)
    for number in range(2, 5):
        clear(weights, to_none)
        copied = reducer.copied_bytes()
        step(reducer, weights, float(number))
        assert addresses(weights) == first
        assert reducer.copied_bytes() - copied == (12 * 4 if to_none else 0)
        for weight in weights:
            assert torch.equal(gradient(weight), torch.full_like(weight, 2.0 * number))
    assert reducer.slot_bytes() == 12 * 4


@pytest.mark.parametrize(("views", "packed"), [(True, 0), (False, 12 * 4)])
def test_neighbours_are_not_packed(views: bool, packed: int) -> None:
    reducer = make(views=views)
    weights = parameters(reducer, 3, 5, 4)
    for _ in range(2):
        before = md.stats()
        step(reducer, weights, 1.0)
        md.barrier()  # Counts are published at the end of a cycle.
        after = md.stats()
        assert after["pack_bytes"] - before["pack_bytes"] == packed
        clear(weights, to_none=False)


def test_the_tensor_stays_the_same_and_looks_like_any_other() -> None:
    reducer = make()
    (weight,) = parameters(reducer, 3)
    weight.sum().backward()
    before = gradient(weight)
    reducer.synchronize()
    assert weight.grad is before and before.tolist() == [2.0] * 3
    assert not before.requires_grad and before.is_leaf and not before._is_view()
    stored = io.BytesIO()
    torch.save(before, stored)
    stored.seek(0)
    assert torch.equal(torch.load(stored), before)
    assert before.untyped_storage().nbytes() == before.nbytes


def test_what_was_kept_of_an_earlier_step_does_not_change() -> None:
    reducer = make()
    weights = parameters(reducer, 3, 4)
    step(reducer, weights, 1.0)
    kept, alias = gradient(weights[0]), gradient(weights[1]).view(2, 2)
    places = addresses(weights)
    for number in (2.0, 3.0):
        clear(weights, to_none=True)
        step(reducer, weights, number)
        assert kept.tolist() == [2.0] * 3 and alias.tolist() == [[2.0] * 2] * 2
        for weight in weights:
            assert torch.equal(gradient(weight), torch.full_like(weight, 2 * number))
        assert not set(addresses(weights)) & set(places)
    del kept, alias
    clear(weights, to_none=True)
    step(reducer, weights, 4.0)
    assert addresses(weights) == places


@pytest.mark.parametrize("whole", [False, True], ids=["a part", "the whole"])
def test_memory_the_user_looks_at_is_written(whole: bool) -> None:
    reducer = make()
    (weight,) = parameters(reducer, 3)
    flat = torch.zeros(3 if whole else 10)
    weight.grad = flat[:3]
    for number in range(1, 4):
        flat.zero_()
        step(reducer, [weight], float(number))
        assert flat[:3].tolist() == [2.0 * number] * 3
        assert gradient(weight).data_ptr() == flat.data_ptr()


def test_a_replaced_gradient_moves_in() -> None:
    reducer = make()
    (weight,) = parameters(reducer, 3)
    step(reducer, [weight], 1.0)
    place = gradient(weight).data_ptr()
    weight.grad = gradient(weight) * 10
    step(reducer, [weight], 1.0)
    assert gradient(weight).tolist() == [42.0] * 3 and gradient(weight).data_ptr() == place


@pytest.mark.parametrize(("compression", "wire"), [(1, torch.float16), (2, torch.bfloat16)])
def test_compressed_gradients_travel_in_their_slots(compression: int, wire: torch.dtype) -> None:
    reducer = make(compression)
    weights = parameters(reducer, 3, 4)
    for number in range(3):
        packed = md.stats()["pack_bytes"]
        copied = reducer.copied_bytes()
        clear(weights, to_none=True)
        step(reducer, weights, 0.3)
        third = 2 * torch.tensor(0.3).to(wire).float().item()
        assert all(set(gradient(weight).tolist()) == {third} for weight in weights)
        md.barrier()
        assert md.stats()["pack_bytes"] == packed
        assert number == 0 or reducer.copied_bytes() - copied == 2 * 7 * 2
    assert reducer.slot_bytes() == 7 * 2


def test_other_layouts_keep_theirs() -> None:
    reducer = make()
    weight = torch.nn.Parameter(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last))
    reducer.add_parameter(weight, "weight", "", 0)
    factor = torch.arange(96.0).reshape(2, 3, 4, 4)
    for _ in range(2):
        weight.grad = None
        (weight * factor).sum().backward()
        reducer.synchronize()
        assert gradient(weight).is_contiguous(memory_format=torch.channels_last)
        assert torch.equal(gradient(weight), factor * 2)


def test_gradients_that_are_part_of_a_graph_stay() -> None:
    reducer = make()
    (weight,) = parameters(reducer, 3)
    for _ in range(2):
        weight.grad = None
        (weight**3).sum().backward(create_graph=True)
        assert gradient(weight).requires_grad
        reducer.synchronize()
        assert gradient(weight).tolist() == [6.0] * 3


def test_gradients_that_autograd_shares_move_in() -> None:
    reducer = make()
    weights = parameters(reducer, 3, 3)
    given = torch.ones(3)
    step(reducer, weights, 1.0)
    places = addresses(weights)
    for number in (1.0, 2.0):
        clear(weights, to_none=True)
        copied = reducer.copied_bytes()
        (torch.cat([weight.reshape(3) for weight in weights]) * number).sum().backward()
        reducer.synchronize()
        assert all(gradient(weight).tolist() == [2 * number] * 3 for weight in weights)
        clear(weights, to_none=True)
        given.fill_(1.0)  # Which advances the version that autograd passes on.
        torch.autograd.backward([weight.view_as(weight) for weight in weights], [given, given])
        reducer.synchronize()
        assert all(gradient(weight).tolist() == [2.0] * 3 for weight in weights)
        assert addresses(weights) == places
        assert reducer.copied_bytes() - copied == 2 * 6 * 4  # In, and not back.
        clear(weights, to_none=False)  # They do not share versions any more either.
        step(reducer, weights, 3.0)
        assert all(gradient(weight).tolist() == [6.0] * 3 for weight in weights)
    assert given.tolist() == [1.0] * 3


def test_gradients_of_weights_used_twice_move_in() -> None:
    reducer = make()
    (weight,) = parameters(reducer, 3)
    step(reducer, [weight], 1.0)
    place = gradient(weight).data_ptr()
    for _ in range(2):
        weight.grad = None
        copied = reducer.copied_bytes()
        # Autograd adds the second to the first before anybody sees it, which advances the version.
        ((weight * 2.0) * (weight * 3.0)).sum().backward()
        assert gradient(weight)._version > 0
        reducer.synchronize()
        assert gradient(weight).tolist() == [24.0] * 3
        assert gradient(weight).data_ptr() == place
        assert reducer.copied_bytes() - copied == 3 * 4  # In, and not back.


def test_later_and_unfrozen_parameters_get_a_place() -> None:
    reducer = make()
    weights = parameters(reducer, 3, 4)
    weights[1].requires_grad_(False)
    weights[0].sum().backward()
    reducer.synchronize()
    assert reducer.buckets() == [["p0"]] and reducer.slot_bytes() == 3 * 4
    weights[1].requires_grad_(True)
    later = torch.nn.Parameter(torch.ones(5))
    reducer.add_parameter(later, "later", "", 0)
    everything = [*weights, later]
    clear(weights[:1], to_none=True)
    step(reducer, everything, 1.0)
    assert reducer.buckets() == [["p0"], ["later", "p1"]] and reducer.slot_bytes() == 12 * 4
    places = addresses(everything)
    clear(everything, to_none=True)
    step(reducer, everything, 2.0)
    assert addresses(everything) == places
    assert all(set(gradient(weight).tolist()) == {4.0} for weight in everything)


def test_another_dtype_or_shape_travels_as_before() -> None:
    reducer = make()
    weights = parameters(reducer, 3, 4)
    step(reducer, weights, 1.0)
    weights[0].data = torch.ones(7)
    weights[1].data = torch.ones(4, dtype=torch.float64)
    clear(weights, to_none=True)
    step(reducer, weights[:1], 2.0)
    weights[1].grad = None
    step(reducer, weights[1:], 3.0)
    assert gradient(weights[1]).dtype == torch.float64
    assert gradient(weights[0]).tolist() == [8.0] * 7  # Reduced twice.
    assert gradient(weights[1]).tolist() == [6.0] * 4


def test_sparse_gradients_reserve_nothing() -> None:
    reducer = make()
    table = torch.nn.Embedding(1000, 4, sparse=True)
    reducer.add_parameter(table.weight, "table", "", 0)
    (weight,) = parameters(reducer, 3)
    for _ in range(2):
        table.weight.grad = weight.grad = None
        (table(torch.tensor([1, 1])).sum() + weight.sum()).backward()
        assert sorted(reducer.pending()) == ["p0", "table"]
        reducer.synchronize()
        assert gradient(table.weight).is_sparse
        assert gradient(weight).tolist() == [2.0] * 3
    assert reducer.slot_bytes() == 12 and reducer.buckets() == [["p0"]]


def test_a_storage_with_other_memory_is_left_alone() -> None:
    reducer = make()
    (weight,) = parameters(reducer, 3)
    step(reducer, [weight], 1.0)
    gradient(weight).share_memory_()
    clear([weight], to_none=False)
    step(reducer, [weight], 2.0)
    assert gradient(weight).is_shared() and gradient(weight).tolist() == [4.0] * 3


def test_the_memory_outlives_the_reducer() -> None:
    reducer = make()
    weights = parameters(reducer, 3, 4)
    step(reducer, weights, 1.0)
    kept = gradient(weights[0])
    reducer.remove()
    assert reducer.slot_bytes() == 0
    del reducer, weights
    assert kept.tolist() == [2.0] * 3


def test_buckets_are_enqueued_when_their_last_gradient_is_there() -> None:
    reducer = make()
    weights = parameters(reducer, 3, 4)
    step(reducer, weights, 1.0)
    assert reducer.buckets() == [["p1", "p0"]]
    clear(weights, to_none=True)
    batches = md.stats()["batches"]
    (weights[0].sum() + weights[1].sum()).backward()
    assert sorted(reducer.pending()) == ["p0", "p1"]
    reducer.synchronize()
    md.barrier()
    assert md.stats()["batches"] - batches == 2  # One of them is the barrier.


def test_explain_tells_of_all_buckets_when_parameters_were_added(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reducer = make()
    weights = parameters(reducer, 3 << 20, 4)
    monkeypatch.setattr("mydist.optim.explain.live_reducers", {reducer})
    step(reducer, weights, 1.0)
    before = md.explain().facts["buckets"]
    added = torch.nn.Parameter(torch.ones(2))
    reducer.add_parameter(added, "added", "", 0)
    clear(weights, to_none=True)
    step(reducer, [*weights, added], 1.0)
    after = md.explain().facts["buckets"]
    assert [layout[0] for layout in reducer.layouts()] == [2, 1]
    assert after.choice.startswith("3 gradients in 3 buckets")
    assert after.reason.startswith(before.reason + "; for 1 added later, the first has up to ")
