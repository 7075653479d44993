"""Collectives that write into memory which the caller gives, in a job of one rank."""

from __future__ import annotations

import pytest
import torch

from mydist import _C

pytestmark = pytest.mark.usefixtures("job")


def test_the_result_is_in_the_memory_that_was_given() -> None:
    source = torch.arange(6.0)
    output = torch.zeros(6)
    (gathered,) = _C.wait(_C.enqueue_allgather([source], ["a"], "", 0, [output]))
    assert gathered is not source and gathered.data_ptr() == output.data_ptr()
    assert torch.equal(output, source)
    reduced = torch.zeros(6)
    handle = _C.enqueue_reducescatter([source], ["b"], "", 0, 1.0, 1.0, 0, [reduced])
    assert _C.wait(handle)[0].data_ptr() == reduced.data_ptr()
    assert torch.equal(reduced, source)


def test_memory_of_another_length_is_left_alone() -> None:
    source, output = torch.arange(6.0), torch.zeros(5)
    (gathered,) = _C.allgather([source], ["a"], "", 0, [output])
    assert torch.equal(gathered, source)
    assert not output.any()


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([torch.zeros(6), torch.zeros(6)], "got 2 outputs for 1 inputs"),
        ([torch.zeros(6, dtype=torch.float64)], "the output is not contiguous float32"),
        ([torch.zeros(12)[::2]], "the output is not contiguous float32"),
    ],
)
def test_memory_that_does_not_fit_is_refused(outputs: list[torch.Tensor], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _C.enqueue_allgather([torch.arange(6.0)], ["a"], "", 0, outputs)


def test_memory_in_reach_is_as_long_as_asked_for() -> None:
    memory = _C.empty_in_reach(1000)
    assert memory.dtype == torch.uint8 and memory.shape == (1000,)
    assert memory.data_ptr() % 64 == 0
    memory.fill_(7)
    assert int(memory.sum()) == 7000
    assert _C.empty_in_reach(0).numel() == 0
