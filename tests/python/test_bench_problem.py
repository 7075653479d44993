"""Problems of the benchmark: right results pass, and every kind of wrong one is told."""

from __future__ import annotations

import pytest
import torch

from mydist.bench.problem import COLLECTIVES, Problem, Shape, WrongResult

MOVING = [op for op in COLLECTIVES if op != "barrier"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int32, torch.int64]


def inputs_of(op: str, dtype: torch.dtype, ranks: int, iteration: int) -> list[Problem]:
    problems = [Problem(Shape(op, dtype, 100, rank, ranks)) for rank in range(ranks)]
    for problem in problems:
        problem.fill(iteration)
    return problems


def result_for(op: str, rank: int, inputs: list[torch.Tensor]) -> torch.Tensor:
    """What the op is defined to give, computed from all inputs."""
    total = torch.stack([tensor.double() for tensor in inputs]).sum(0)
    own = slice(*(len(total) // len(inputs) * part for part in (rank, rank + 1)))
    result = {
        "allreduce": lambda: total,
        "allgather": lambda: torch.cat(inputs),
        "broadcast": lambda: inputs[0].clone(),
        "alltoall": lambda: torch.cat([tensor[own] for tensor in inputs]),
        "reducescatter": lambda: total[own],
    }[op]()
    return result.to(inputs[0].dtype)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", MOVING)
def test_right_results_pass(op: str, dtype: torch.dtype, ranks: int) -> None:
    for iteration in range(6):
        problems = inputs_of(op, dtype, ranks, iteration)
        for rank, problem in enumerate(problems):
            result = result_for(op, rank, [p.input for p in problems])
            problem.check(result, iteration, "x")


@pytest.mark.parametrize("op", MOVING)
def test_one_wrong_element_is_told(op: str) -> None:
    problems = inputs_of(op, torch.float32, 2, 3)
    result = result_for(op, 1, [p.input for p in problems])
    result[5] += 1
    expected = f"x: {op} of 100 bytes gave a wrong result on rank 1: element 5 of"
    with pytest.raises(WrongResult, match=expected):
        problems[1].check(result, 3, "x")


@pytest.mark.parametrize("op", MOVING)
def test_the_result_of_another_iteration_is_wrong(op: str) -> None:
    problems = inputs_of(op, torch.float32, 2, 0)
    stale = result_for(op, 0, [p.input for p in problems])
    problems[0].fill(1)
    with pytest.raises(WrongResult):
        problems[0].check(stale, 1, "x")


def test_a_result_of_another_size_is_wrong() -> None:
    (problem,) = inputs_of("allgather", torch.float32, 1, 0)
    with pytest.raises(WrongResult, match="gave 24 elements on rank 0, expected 25"):
        problem.check(problem.input[:24], 0, "x")


def test_sizes_are_rounded_up_to_whole_parts() -> None:
    assert Shape("alltoall", torch.float32, 20, 0, 3).elements == 6
    assert Shape("allreduce", torch.float32, 20, 0, 3).elements == 5
    assert Shape("allreduce", torch.float64, 1, 0, 3).elements == 1
    assert Shape("barrier", torch.float32, 8, 0, 3).elements == 0


def test_bytes_that_memory_must_give_or_take() -> None:
    def touched(op: str) -> int:
        return Shape(op, torch.float32, 4000, 0, 4).touched_bytes

    assert touched("allreduce") == touched("broadcast") == touched("alltoall") == 8000
    assert touched("allgather") == 2 * 4 * 4000
    assert touched("reducescatter") == 4000 + 1000
