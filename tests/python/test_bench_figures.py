"""benchmarks.figures: which gradients of a step are one buffer in the picture of the timeline."""

from __future__ import annotations

from benchmarks.figures import Spans, buffers


def spans(begin: float) -> Spans:
    """Of a gradient that is enqueued 30 us before it is reduced."""
    return {"ENQUEUE": (begin - 30, begin - 10), "ALLREDUCE": (begin, begin + 60)}


def test_gradients_that_are_reduced_together_are_one_buffer() -> None:
    """Also where a multiple of 25 or 50 us lies between them, and beside another rank's."""
    found = buffers([(1, spans(4024)), (0, spans(4026)), (1, spans(4026)), (1, spans(10))])
    assert [(rank, row["ALLREDUCE"]) for rank, row in found] == [
        (0, (4026, 4086)),
        (1, (10, 70)),
        (1, (4024, 4084)),
    ]
    assert found[2][1]["ENQUEUE"] == (3994, 4014)
