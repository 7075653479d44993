"""Every collective in a job of one rank: it computes what the formula says, and copies or not."""

from __future__ import annotations

import pytest
import torch

import mydist as md

pytestmark = pytest.mark.usefixtures("job")

X = torch.tensor([[1.0, -2.0], [3.5, 4.0], [0.0, 6.0]])


@pytest.mark.parametrize("op", list(md.ReduceOp))
def test_allreduce_returns_a_new_equal_tensor(op: md.ReduceOp) -> None:
    out = md.allreduce(X, op=op)
    assert torch.equal(out, X)
    assert out.data_ptr() != X.data_ptr()


@pytest.mark.parametrize("average", [True, False, None])
def test_allreduce_takes_average_by_position(average: bool | None) -> None:
    assert torch.equal(md.allreduce(X, average, "named"), X)


def test_factors_are_applied() -> None:
    assert torch.equal(md.allreduce(X, op=md.Sum, prescale_factor=2.0, postscale_factor=4.0), X * 8)
    assert torch.equal(md.reducescatter(X, op=md.Sum, postscale_factor=0.5), X / 2)
    ints = torch.tensor([1, 3, -3])
    assert md.allreduce(ints, op=md.Sum, prescale_factor=0.5).tolist() == [0, 1, -1]


def test_the_first_overflow_is_a_warning(capfd: pytest.CaptureFixture[str]) -> None:
    big = torch.full((3,), 60000.0, dtype=torch.float16)
    for name in ("first", "second"):
        assert md.allreduce(big, op=md.Sum, prescale_factor=2.0, name=name).isinf().all()
    assert md.stats()["overflows"] == 2
    (warning,) = [line for line in capfd.readouterr().err.splitlines() if "WARNING" in line]
    assert "allreduce 'first' has overflowed float16: ranks that give finite numbers get" in warning


def test_in_place_returns_the_same_tensor() -> None:
    tensor = X.clone()
    assert md.allreduce_(tensor, op=md.Sum, postscale_factor=3.0) is tensor
    assert torch.equal(tensor, X * 3)
    assert md.broadcast_(tensor, 0) is tensor
    handle = md.allreduce_async_(tensor, op=md.Sum, postscale_factor=2.0)
    assert md.synchronize(handle) is tensor
    assert torch.equal(tensor, X * 6)


def test_in_place_on_a_view_changes_the_view_only() -> None:
    base = torch.zeros(4, 4)
    view = base[:, 1::2]
    view.copy_(torch.arange(8.0).reshape(4, 2))
    md.allreduce_(view, op=md.Sum, postscale_factor=2.0)
    assert torch.equal(base[:, 1::2], torch.arange(8.0).reshape(4, 2) * 2)
    assert torch.equal(base[:, ::2], torch.zeros(4, 2))
    md.broadcast_(base.t(), 0)
    assert base[3, 3] == 14.0


@pytest.mark.parametrize(
    "tensor",
    [
        X.t(),
        X[:, 1],
        X[::2],
        torch.ones(1, 3).expand(4, 3),
        torch.arange(10.0)[3:7],
        torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.tensor(2.5),
        torch.empty(0),
        torch.empty(3, 0, 2),
        torch.randn(4, dtype=torch.complex64).conj(),
        torch.randn(4, dtype=torch.complex64).conj().imag,
        torch._efficientzerotensor((3,)),
        torch.nn.Parameter(torch.ones(3)).detach(),
    ],
    ids=[
        "transposed", "column", "strided", "expanded", "offset", "channels last", "0-d", "empty",
        "empty 3-d", "conjugate", "negated", "zero tensor", "parameter",
    ],
)  # fmt: skip
def test_any_layout_is_read_as_its_values(tensor: torch.Tensor) -> None:
    out = md.allreduce(tensor, op=md.Sum)
    assert out.shape == tensor.shape and torch.equal(out, tensor)
    assert torch.equal(md.broadcast(tensor, 0), tensor)
    gathered = md.allgather(tensor)
    assert torch.equal(gathered, tensor.reshape(1) if tensor.dim() == 0 else tensor)
    if tensor.dim() > 0:
        assert torch.equal(md.reducescatter(tensor, op=md.Sum), tensor)
        assert torch.equal(md.alltoall(tensor), tensor)


@pytest.mark.parametrize("splits", [[3], (3,), torch.tensor([3]), torch.tensor([3]).int()])
def test_alltoall_gives_received_splits_when_asked(splits: object) -> None:
    output, received = md.alltoall(X, splits)  # type: ignore[arg-type]
    assert torch.equal(output, X)
    assert received.tolist() == [3] and received.dtype == torch.int64
    output, received = md.synchronize(md.alltoall_async(X, splits))  # type: ignore[arg-type]
    assert torch.equal(output, X) and received.tolist() == [3]
    assert isinstance(md.synchronize(md.alltoall_async(X)), torch.Tensor)


def test_groups_keep_order_shapes_and_dtypes() -> None:
    group = [X, torch.arange(5), torch.ones(2, dtype=torch.float64), torch.empty(0)]
    for results in (
        md.grouped_allreduce(group, op=md.Sum),
        md.grouped_allgather(group),
        md.grouped_reducescatter(group, op=md.Sum),
        md.synchronize(md.grouped_allreduce_async(group, op=md.Sum)),
        md.synchronize(md.grouped_allgather_async(group)),
        md.synchronize(md.grouped_reducescatter_async(group, op=md.Sum)),
    ):
        assert [r.dtype for r in results] == [t.dtype for t in group]
        assert all(torch.equal(r, t) for r, t in zip(results, group, strict=True))


def test_groups_in_place_return_the_given_tensors() -> None:
    group = [X.clone(), torch.ones(3)]
    results = md.grouped_allreduce_(group, op=md.Sum, postscale_factor=2.0)
    assert all(result is tensor for result, tensor in zip(results, group, strict=True))
    assert torch.equal(group[0], X * 2) and torch.equal(group[1], torch.full((3,), 2.0))
    again = md.synchronize(md.grouped_allreduce_async_(group, op=md.Sum))
    assert all(result is tensor for result, tensor in zip(again, group, strict=True))


@pytest.mark.parametrize("compression", [md.Compression.fp16, md.Compression.bf16])
def test_compression_rounds_as_the_cast_does(compression: type[md.Compressor]) -> None:
    tensor = torch.linspace(-3.0, 3.0, 101)
    expected = compression.decompress(*compression.compress(tensor))
    assert not torch.equal(expected, tensor)
    assert torch.equal(md.allreduce(tensor, compression=compression), expected)
    handle = md.allreduce_async(tensor, compression=compression)
    assert torch.equal(md.synchronize(handle), expected)
    group = md.grouped_allreduce([tensor, tensor], compression=compression)
    assert all(torch.equal(result, expected) for result in group)
    in_place = tensor.clone()
    assert md.allreduce_(in_place, compression=compression) is in_place
    assert torch.equal(in_place, expected)
    ints = torch.arange(5)
    assert torch.equal(md.allreduce(ints, op=md.Sum, compression=compression), ints)


def test_barrier_returns() -> None:
    before = md.stats()["batches"]
    assert md.barrier() is None  # type: ignore[func-returns-value]
    assert md.stats()["batches"] >= before


def test_autograd_sees_what_in_place_forms_change() -> None:
    weight = torch.ones(2, requires_grad=True)
    factor = torch.ones(2)
    product = weight * factor
    md.allreduce_(factor, op=md.Sum)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_parameters_are_changed_in_place_under_no_grad() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    with torch.no_grad():
        md.broadcast_(parameter, 0)
        md.allreduce_(parameter, op=md.Sum, postscale_factor=2.0)
    assert parameter.tolist() == [2.0, 2.0, 2.0] and parameter.requires_grad


def test_inference_tensors_travel() -> None:
    with torch.inference_mode():
        tensor = torch.ones(3)
        assert md.allreduce_(tensor).tolist() == [1.0, 1.0, 1.0]
    assert md.allgather(tensor).tolist() == [1.0, 1.0, 1.0]
