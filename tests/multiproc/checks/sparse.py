"""sparse_allreduce_async: the sum of the dense forms, computed from indices and values."""

from __future__ import annotations

import torch

import mydist as md
from multiproc.checks.mismatch import expect_mismatch, expect_usable, odd
from multiproc.checks.process_sets import added
from multiproc.reference import (
    FLOATS,
    INTEGERS,
    expect_close,
    expect_equal,
    expect_near,
    make,
)
from multiproc.registry import check


def sparse(
    rank: int, dtype: torch.dtype, dense: tuple[int, ...] = (), *, entries: int = 12
) -> torch.Tensor:
    """A 6 × 5 tensor whose entries repeat indices, with some values behind each."""
    generator = torch.Generator().manual_seed(300 + rank)
    rows = torch.randint(0, 6, (entries,), generator=generator)
    columns = torch.randint(0, 5, (entries,), generator=generator)
    values = make(rank, dtype, (entries, *dense), seed=31)
    return torch.sparse_coo_tensor(
        torch.stack([rows, columns]), values, (6, 5, *dense), check_invariants=True
    )


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Its dense form in float64 or int64; duplicates are added there."""
    wide = torch.float64 if tensor.is_floating_point() else torch.int64
    return tensor.to(wide).to_dense()


def expect_sum(got: torch.Tensor, inputs: list[torch.Tensor], *, average: bool) -> None:
    assert got.layout == torch.sparse_coo and got.is_coalesced()
    assert got.dtype == inputs[0].dtype and got.shape == inputs[0].shape
    assert got.sparse_dim() == inputs[0].sparse_dim()
    wanted = torch.stack([widened(x) for x in inputs]).sum(0)
    size = torch.stack([widened(x.abs().coalesce()) for x in inputs]).abs().sum(0)
    if average:
        is_real = wanted.is_floating_point()
        wanted = wanted / len(inputs) if is_real else wanted.div(len(inputs), rounding_mode="trunc")
    expect_close(got.to_dense(), wanted, size if got.is_floating_point() else None)
    touched = torch.cat([x._indices() for x in inputs], 1).unique(dim=1)
    assert torch.equal(got.indices(), touched), "an index is missing, repeated or out of order"


@check(cases=[(d, op) for d in (*FLOATS, torch.int32, torch.int64) for op in ("Sum", "Average")])
def sum_and_average(dtype: torch.dtype, op: str) -> None:
    inputs = [sparse(rank, dtype, entries=4 * rank + 3) for rank in range(md.size())]
    handle = md.sparse_allreduce_async(
        inputs[md.rank()], name=f"sp.{dtype}.{op}", op=getattr(md, op)
    )
    expect_sum(md.synchronize(handle), inputs, average=op == "Average")


@check()
def the_default_is_the_average() -> None:
    inputs = [sparse(rank, torch.float32) for rank in range(md.size())]
    got = md.synchronize(md.sparse_allreduce_async(inputs[md.rank()]))
    expect_sum(got, inputs, average=True)


@check(cases=[((),), ((4,),), ((2, 3),)])
def entries_with_dense_dimensions(dense: tuple[int, ...]) -> None:
    inputs = [sparse(rank, torch.float32, dense) for rank in range(md.size())]
    handle = md.sparse_allreduce_async(inputs[md.rank()], name=f"sp.dense.{dense}", op=md.Sum)
    expect_sum(md.synchronize(handle), inputs, average=False)


@check()
def ranks_without_entries_count_in_the_average() -> None:
    for empty in range(md.size()):
        inputs = [
            sparse(rank, torch.float64, (2,), entries=0 if rank == empty else 5)
            for rank in range(md.size())
        ]
        handle = md.sparse_allreduce_async(inputs[md.rank()], name="sp.one without")
        expect_sum(md.synchronize(handle), inputs, average=True)


@check(min_size=3)
def the_average_in_a_process_set_divides_by_its_size() -> None:
    members = [0, md.size() - 1]
    with added(members) as (pair,):
        inputs = [sparse(rank, torch.float64, (2,)) for rank in members]
        if pair.included():
            mine = inputs[pair.rank()]
            handle = md.sparse_allreduce_async(mine, name="sp.set", process_set=pair)
            expect_sum(md.synchronize(handle), inputs, average=True)
        else:
            try:
                md.sparse_allreduce_async(inputs[0], name="sp.set", process_set=pair)
            except ValueError as error:
                assert f"rank {md.rank()} is not in" in str(error), str(error)
            else:
                raise AssertionError("a rank outside the set was accepted")


@check(min_size=2)
def a_rank_that_has_joined_has_no_entries() -> None:
    last = md.size() - 1
    inputs = [
        sparse(r, torch.float64, (2,), entries=0 if r == last else 5) for r in range(last + 1)
    ]
    got = None
    if md.rank() != last:
        handle = md.sparse_allreduce_async(inputs[md.rank()], name="sp.joined")
        got = md.synchronize(handle)
    md.join()
    if got is not None:
        expect_sum(got, inputs, average=True)


@check()
def nobody_has_an_entry() -> None:
    nothing = torch.sparse_coo_tensor(size=(3, 4, 2), dtype=torch.float16, check_invariants=True)
    got = md.synchronize(md.sparse_allreduce_async(nothing, name="sp.nothing"))
    assert got.shape == (3, 4, 2) and got._nnz() == 0 and got.dtype == torch.float16


@check()
def one_index_on_all_ranks_is_exact() -> None:
    indices = torch.tensor([[3, 3, 3]])
    mine = torch.sparse_coo_tensor(
        indices, torch.full((3,), float(md.rank() + 1)), (9,), check_invariants=True
    )
    got = md.synchronize(md.sparse_allreduce_async(mine, name="sp.exact", op=md.Sum))
    assert got.indices().tolist() == [[3]]
    assert got.values().tolist() == [3.0 * sum(range(1, md.size() + 1))]


@check()
def halves_are_rounded_once() -> None:
    # 2048 + 1 + 1 … in float16 would stay at 2048.
    n = md.size()
    indices = torch.zeros(1, 3, dtype=torch.int64)
    values = torch.tensor([2048.0, 1.0, 1.0], dtype=torch.float16)
    mine = torch.sparse_coo_tensor(indices, values, (2,), check_invariants=True)
    got = md.synchronize(md.sparse_allreduce_async(mine, name="sp.half", op=md.Sum))
    wanted = torch.tensor([2050.0 * n], dtype=torch.float64).to(torch.float16)
    expect_equal(got.values(), wanted)


@check()
def handles_are_those_of_every_call() -> None:
    mine = sparse(md.rank(), torch.float32)
    handles = [md.sparse_allreduce_async(mine, name=f"sp.many.{i}", op=md.Sum) for i in range(4)]
    md.barrier()
    for handle in reversed(handles):
        while not md.poll(handle):
            pass
        assert md.synchronize(handle).is_coalesced()
    try:
        md.synchronize(handles[0])
    except ValueError as error:
        assert str(handles[0]) in str(error)
    else:
        raise AssertionError("a handle was consumed twice")


@check()
def the_gradient_of_an_embedding_bag() -> None:
    n, me = md.size(), md.rank()
    tables = [torch.nn.EmbeddingBag(20, 3, sparse=True, mode="sum") for _ in range(n)]
    for rank, table in enumerate(tables):
        generator = torch.Generator().manual_seed(rank)
        words = torch.randint(0, 20, (4, 5), generator=generator)
        table(words).mul(rank + 1).sum().backward()
    gradients = [table.weight.grad for table in tables]
    got = md.synchronize(md.sparse_allreduce_async(gradients[me], name="sp.embedding"))
    wanted = torch.stack([g.to_dense() for g in gradients if g is not None]).mean(0)
    expect_near(got.to_dense(), wanted, 1e-6, "gradient")


MISMATCHES = {
    "sparse size": (lambda: sparse_of((6 if odd() else 5, 5)), ["[*, 5, 5]", "[*, 6, 5]"]),
    "dense size": (lambda: sparse_of((5, 5, 3 if odd() else 2)), ["3", "2"]),
    "dimensions": (lambda: sparse_of((5, 5), 1 if odd() else 2), ["1", "2"]),
    "dtype": (
        lambda: sparse_of((5, 5)).to(torch.float64 if odd() else torch.float32),
        ["float32", "float64"],
    ),
}


def sparse_of(shape: tuple[int, ...], sparse_dim: int = 2) -> torch.Tensor:
    indices = torch.tensor([[1, 1]] * sparse_dim)
    values = torch.ones(2, *shape[sparse_dim:])
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


@check(min_size=2, cases=[(kind,) for kind in MISMATCHES])
def ranks_that_disagree(kind: str) -> None:
    tensor, mentioned = MISMATCHES[kind]
    name = f"sp.mismatch.{kind}"
    for _ in range(2):
        expect_mismatch(
            name, lambda n: md.synchronize(md.sparse_allreduce_async(tensor(), name=n)), mentioned
        )
    expect_usable(name)


@check(min_size=2, cases=[(dtype,) for dtype in INTEGERS])
def integers_wrap_as_dense_ones_do(dtype: torch.dtype) -> None:
    mine = torch.sparse_coo_tensor(
        torch.tensor([[1]]), torch.tensor([100], dtype=dtype), (2,), check_invariants=True
    )
    got = md.synchronize(md.sparse_allreduce_async(mine, name=f"sp.wrap.{dtype}", op=md.Sum))
    dense = md.allreduce(mine.to_dense(), name=f"sp.wrap.dense.{dtype}", op=md.Sum)
    expect_equal(got.to_dense(), dense)
