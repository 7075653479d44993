"""Process sets, join and the rooted collectives: what one process can see of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import mydist as md

T = torch.ones(4)


def untyped(value: object) -> Any:
    """A wrong argument that the type checker must not see."""
    return value


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


Case = tuple[Callable[[], object], type[Exception], str]

CASES: dict[str, Case] = {
    "no ranks": (lambda: md.ProcessSet([]), ValueError, r"ProcessSet: ranks is empty, expected at"),
    "rank twice": (
        lambda: md.ProcessSet((3, 1, 3)),
        ValueError,
        r"ProcessSet: ranks contains 3 twice, expected each rank once",
    ),
    "bool rank": (lambda: md.ProcessSet([False]), TypeError, r"ranks contains False \(bool\)"),
    "not added": (
        lambda: md.allreduce(T, process_set=md.ProcessSet([0])),
        ValueError,
        r"allreduce: ProcessSet\(\[0\]\) is not part of the job; add it first, with mydist\.init\(",
    ),
    "not added optimizer": (
        lambda: md.DistributedOptimizer(
            torch.optim.SGD([torch.ones(1, requires_grad=True)]), process_set=md.ProcessSet([1])
        ),
        ValueError,
        r"DistributedOptimizer: ProcessSet\(\[1\]\) is not part of the job; add it first",
    ),
    "number of a set not added": (
        lambda: md.ProcessSet([1]).process_set_id,
        ValueError,
        r"ProcessSet\(\[1\]\) is not part of the job; add it first",
    ),
    "index in a set of others": (
        lambda: md.ProcessSet([1]).rank(),
        ValueError,
        r"rank 0 is not in ProcessSet\(\[1\]\); check included\(\) first",
    ),
    "add the job": (
        lambda: md.add_process_set([0]),
        ValueError,
        r"add_process_set: ranks \[0\] are those of the global process set, id 0; use that set",
    ),
    "add a rank too many": (
        lambda: md.add_process_set(md.ProcessSet([1])),
        ValueError,
        r"add_process_set: ProcessSet\(\[1\]\) contains rank 1, but the job has ranks 0 to 0",
    ),
    "remove the job": (
        lambda: md.remove_process_set(md.global_process_set),
        ValueError,
        r"remove_process_set: the global process set is the job itself and cannot be removed",
    ),
    "remove what was not added": (
        lambda: md.remove_process_set(md.ProcessSet([0])),
        ValueError,
        r"remove_process_set: ProcessSet\(\[0\]\) is not part of the job; it was never added, or",
    ),
    "remove a list": (
        lambda: md.remove_process_set(untyped([0])),
        TypeError,
        r"remove_process_set: got \[0\] \(list\), expected a ProcessSet",
    ),
    "adasum of integers": (
        lambda: md.allreduce(torch.ones(2, dtype=torch.int32), op=md.Adasum, name="a"),
        ValueError,
        r"allreduce of 'a': op Adasum has no meaning for dtype int32\. Adasum needs real floating",
    ),
    "adasum scattered": (
        lambda: md.reducescatter(T, op=md.Adasum),
        ValueError,
        r"reducescatter: op Adasum works with allreduce only, because it compares whole",
    ),
    "reduce to a float": (
        lambda: md.reduce(T, untyped(0.0)),
        TypeError,
        r"reduce: root_rank is 0\.0 \(float\), expected an int",
    ),
    "reduce twice described": (
        lambda: md.reduce(T, 0, average=True, op=md.Sum),
        ValueError,
        r"reduce: both average=True and op=Sum are given",
    ),
    "reduce to nobody": (
        lambda: md.reduce(T, 1, name="r"),
        ValueError,
        r"reduce of 'r': root_rank 1 is not a rank of this job of size 1, expected 0 to 0",
    ),
    "gather of sparse": (
        lambda: md.gather(T.to_sparse(), name="g"),
        ValueError,
        r"gather of 'g': its layout is Sparse, expected a dense tensor",
    ),
    "scatter of 0-d": (
        lambda: md.scatter(torch.tensor(1.0), name="s"),
        ValueError,
        r"scatter of 's': got a 0-d tensor, expected at least one dimension",
    ),
    "scatter splits": (
        lambda: md.scatter(T, [3], name="s"),
        ValueError,
        r"scatter of 's': splits sum to 3, expected the first dimension 4",
    ),
    "send to oneself": (
        lambda: md.send(T, 0),
        ValueError,
        r"send: rank 0 is this process itself, expected another rank; use tensor\.clone\(\)",
    ),
    "send to nobody": (
        lambda: md.send(T, 1),
        ValueError,
        r"send: rank 1 is not in ProcessSet\(process_set_id=0\) with ranks \[0\]; pass the global",
    ),
    "receive into a leaf": (
        lambda: md.recv(torch.ones(1, requires_grad=True), 1),
        ValueError,
        r"recv: the tensor is a leaf that requires grad.* recorded; call it under torch\.no_grad",
    ),
    "join device": (
        lambda: md.join(-2),
        ValueError,
        r"join: device is -2, expected -1 or the index of a GPU",
    ),
}


# What a communicator stands for is known only after its ranks have talked.
AFTER_AN_EXCHANGE: dict[str, Case] = {
    "add the job by communicator": (
        lambda: md.add_process_set(Communicator([0])),
        ValueError,
        r"add_process_set: ranks \[0\] are those of the global process set, id 0",
    ),
    "add nobody": (
        lambda: md.add_process_set(Communicator([])),
        ValueError,
        r"add_process_set: the communicator is COMM_NULL on all ranks",
    ),
}


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("case", AFTER_AN_EXCHANGE.values(), ids=AFTER_AN_EXCHANGE.keys())
def test_is_refused_after_an_exchange(case: Case) -> None:
    call, error, text = case
    with pytest.raises(error, match=text):
        call()


@pytest.mark.usefixtures("job")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_is_refused(case: Case) -> None:
    call, error, text = case
    before = md.stats()["tensors"]
    with pytest.raises(error, match=f"(?s){text}"):
        call()
    assert md.stats()["tensors"] == before


@pytest.mark.usefixtures("no_job")
@pytest.mark.parametrize(
    "call",
    [
        lambda: md.add_process_set([0]),
        lambda: md.remove_process_set(md.ProcessSet([0])),
        md.join,
        lambda: md.reduce(T, 0),
        lambda: md.gather(T),
        lambda: md.scatter(T),
        lambda: md.send(T, 1),
        lambda: md.recv(T, 1),
        lambda: md.global_process_set.ranks,
        md.ProcessSet([0]).included,
        md.ProcessSet([0]).rank,
    ],
)
def test_needs_a_job(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"mydist has not been initialized"):
        call()


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
