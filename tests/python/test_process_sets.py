"""Process sets, join and the rooted collectives: what one process can see of them."""

from __future__ import annotations

import pytest
import torch
from refusals import expect_refusal, refusals

import mydist as md

T = torch.ones(4)


class Communicator:
    """What ProcessSet uses of an mpi4py communicator."""

    def __init__(self, ranks: list[int]) -> None:
        self._ranks = ranks

    def __bool__(self) -> bool:
        return bool(self._ranks)

    def Get_size(self) -> int:
        return len(self._ranks)

    def allgather(self, rank: int) -> list[int]:
        return self._ranks


CASES = refusals(
    """
md.ProcessSet([])
    ValueError: ProcessSet: ranks is empty, expected at
md.ProcessSet((3, 1, 3))
    ValueError: ProcessSet: ranks contains 3 twice, expected each rank once
md.ProcessSet([False])
    TypeError: an item of ranks is False (bool)
md.allreduce(T, process_set=md.ProcessSet([0]))
    ValueError: allreduce: ProcessSet([0]) is not part of the job; add it first, with mydist.init(
md.DistributedOptimizer(torch.optim.SGD([torch.ones(1, requires_grad=True)]),
process_set=md.ProcessSet([1]))
    ValueError: DistributedOptimizer: ProcessSet([1]) is not part of the job; add it first
md.ProcessSet([1]).process_set_id
    ValueError: ProcessSet([1]) is not part of the job; add it first
md.ProcessSet([1]).rank()
    ValueError: rank 0 is not in ProcessSet([1]); check included() first
md.add_process_set([0])
    ValueError: add_process_set: ranks [0] are those of the global process set, id 0; use that set
md.add_process_set(md.ProcessSet([1]))
    ValueError: add_process_set: ProcessSet([1]) contains rank 1, but the job has ranks 0 to 0
md.remove_process_set(md.global_process_set)
    ValueError: remove_process_set: the global process set is the job itself and cannot be removed
md.remove_process_set(md.ProcessSet([0]))
    ValueError: remove_process_set: ProcessSet([0]) is not part of the job; it was never added, or
md.remove_process_set([0])
    TypeError: remove_process_set: process_set is [0] (list), expected a ProcessSet
md.allreduce(torch.ones(2, dtype=torch.int32), op=md.Adasum, name='a')
    ValueError: allreduce of 'a': op Adasum has no meaning for dtype int32. Adasum needs real floati
md.reducescatter(T, op=md.Adasum)
    ValueError: reducescatter: op Adasum works with allreduce only, because it compares whole
md.reduce(T, 0.0)
    TypeError: reduce: root_rank is 0.0 (float), expected an int
md.reduce(T, 0, average=True, op=md.Sum)
    ValueError: reduce: both average=True and op=Sum are given
md.reduce(T, 1, name='r')
    ValueError: reduce of 'r': root_rank 1 is not a rank of this job of size 1, expected 0 to 0
md.gather(T.to_sparse(), name='g')
    ValueError: gather of 'g': its layout is Sparse, expected a dense tensor
md.scatter(torch.tensor(1.0), name='s')
    ValueError: scatter of 's': got a 0-d tensor, expected at least one dimension
md.scatter(T, [3], name='s')
    ValueError: scatter of 's': splits sum to 3, expected the first dimension 4
md.send(T, 0)
    ValueError: send: rank 0 is this process itself, expected another rank; use tensor.clone()
md.send(T, 1)
    ValueError: send: rank 1 is not in ProcessSet(process_set_id=0) with ranks [0]; pass the global
md.recv(torch.ones(1, requires_grad=True), 1)
    ValueError: recv: the tensor is a leaf that requires grad… recorded; call it under torch.no_grad
md.join(-2)
    ValueError: join: device is -2, expected -1 or the index of a GPU
"""
)


# What a communicator stands for is known only after its ranks have talked.
AFTER_AN_EXCHANGE = refusals(
    """
md.add_process_set(Communicator([0]))
    ValueError: add_process_set: ranks [0] are those of the global process set, id 0
md.add_process_set(Communicator([]))
    ValueError: add_process_set: the communicator is COMM_NULL on all ranks
"""
)


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(("call", "error"), AFTER_AN_EXCHANGE)
def test_is_refused_after_an_exchange(call: str, error: str) -> None:
    expect_refusal(call, error, globals())


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize(("call", "error"), CASES)
def test_is_refused(call: str, error: str) -> None:
    before = md.stats()["tensors"]
    expect_refusal(call, error, globals())
    assert md.stats()["tensors"] == before


@pytest.mark.usefixtures("no_job")
def test_a_set_of_ranks_knows_them_before_it_is_added() -> None:
    process_set = md.ProcessSet({5, 2})
    assert process_set.ranks == [2, 5]
    assert process_set.size() == 2
    assert repr(process_set) == "ProcessSet([2, 5])"
    assert repr(md.global_process_set) == "ProcessSet(process_set_id=0)"


@pytest.mark.usefixtures("job")
def test_one_rank_does_it_all_alone() -> None:
    assert md.join() == 0
    assert md.join(device=0) == 0
    matrix = torch.arange(6.0).reshape(3, 2)
    for result in (
        md.reduce(matrix, 0),
        md.synchronize(md.reduce_async(matrix, 0, op=md.Max)),
        md.gather(matrix),
        md.synchronize(md.gather_async(matrix, 0)),
        md.scatter(matrix),
        md.scatter(matrix, [3]),
        md.synchronize(md.scatter_async(matrix, torch.tensor([3]))),
        md.allreduce(matrix, op=md.Adasum),
    ):
        assert result is not None and torch.equal(result, matrix)
        assert result.data_ptr() != matrix.data_ptr()
    scaled = md.reduce(matrix, 0, op=md.Sum, prescale_factor=2.0, postscale_factor=0.5)
    assert scaled is not None and torch.equal(scaled, matrix)
    gathered = md.gather(torch.tensor(3))
    assert gathered is not None and gathered.tolist() == [3]
