"""sparse_allreduce_async in a job of one rank, and its wrong uses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mydist as md

pytestmark = pytest.mark.usefixtures("job")


def sparse(dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A vector of 5 with index 3 twice."""
    indices, values = torch.tensor([[3, 0, 3]]), torch.tensor([1, 2, 4], dtype=dtype)
    return torch.sparse_coo_tensor(indices, values, (5,), check_invariants=True)


@pytest.mark.parametrize(
    "dtype",
    [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int64, torch.complex64],
    ids=str,
)
@pytest.mark.parametrize("op", [None, md.Average, md.Sum])
def test_duplicates_are_added_up(dtype: torch.dtype, op: md.ReduceOp | None) -> None:
    given = sparse(dtype)
    got = md.synchronize(md.sparse_allreduce_async(given, op=op))
    assert got.is_coalesced() and got.dtype == dtype and got.shape == (5,)
    assert got.indices().tolist() == [[0, 3]]
    assert torch.equal(got.values(), torch.tensor([2, 5], dtype=dtype))
    assert given._nnz() == 3, "the input is not changed"


def test_the_gradient_of_a_leaf() -> None:
    bag = torch.nn.Embedding(5, 2, sparse=True)
    bag(torch.tensor([1, 1, 4])).sum().backward()
    assert bag.weight.grad is not None
    got = md.synchronize(md.sparse_allreduce_async(bag.weight.grad, "bag"))
    assert got.indices().tolist() == [[1, 4]] and got.values().tolist() == [[2, 2], [1, 1]]
    assert not got.requires_grad


def test_a_sum_that_is_zero_keeps_its_index() -> None:
    given = torch.sparse_coo_tensor(
        torch.tensor([[1, 1]]), torch.tensor([2.0, -2.0]), (3,), check_invariants=True
    )
    got = md.synchronize(md.sparse_allreduce_async(given))
    assert got.indices().tolist() == [[1]] and got.values().tolist() == [0.0]


def test_shapes_beyond_any_dense_tensor() -> None:
    given = torch.sparse_coo_tensor(
        torch.tensor([[7], [8]]), torch.ones(1), (10**9, 10**9), check_invariants=True
    )
    got = md.synchronize(md.sparse_allreduce_async(given))
    assert got.shape == (10**9, 10**9) and got.indices().tolist() == [[7], [8]]


CALL = "sparse_allreduce_async"
WRONG: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "dense": (torch.ones(3), {}, ValueError, "got a dense tensor, expected a sparse COO"),
    "dense, instead": (torch.ones(3), {}, ValueError, r"use allreduce_async\(\), or convert it"),
    "csr": (
        torch.eye(3).to_sparse_csr(),
        {},
        ValueError,
        r"got a torch.sparse_csr tensor, expected a sparse COO tensor; convert it with to_sparse",
    ),
    "no tensor": ([1.0], {}, TypeError, "got list, expected a torch.Tensor"),
    "no sparse dimensions": (
        torch.sparse_coo_tensor(torch.empty(0, 1, dtype=torch.int64), torch.ones(1, 2), (2,)),
        {},
        ValueError,
        r"without sparse dimensions \(shape \[2\]\)",
    ),
    "bool": (sparse(torch.bool), {}, TypeError, "torch.bool, which has no sum"),
    "Min": (sparse(), {"op": md.Min}, ValueError, "op is Min, expected Average or Sum"),
    "Max": (sparse(), {"op": md.Max}, ValueError, r"use allreduce_async\(\) on tensor.to_dense"),
    "Product": (sparse(), {"op": md.Product}, ValueError, "op is Product, expected Average or"),
    "Adasum": (sparse(), {"op": md.Adasum}, ValueError, "op is Adasum, expected Average or"),
    "op": (sparse(), {"op": "Sum"}, TypeError, "op is 'Sum' .str., expected mydist.Average"),
    "name": (sparse(), {"name": 3}, TypeError, "name is 3 .int., expected a str or None"),
    "empty name": (sparse(), {"name": ""}, ValueError, "name is empty, expected a str"),
    "set": (sparse(), {"process_set": 0}, TypeError, "process_set is 0 .int., expected a Proc"),
}


@pytest.mark.parametrize(("tensor", "options", "error", "text"), WRONG.values(), ids=WRONG.keys())
def test_wrong_arguments(
    tensor: Any, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=f"(?i){CALL[:16]}.*{text}"):
        md.sparse_allreduce_async(tensor, **options)
