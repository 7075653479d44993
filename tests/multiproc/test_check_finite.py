"""MYDIST_CHECK_FINITE: a number that is none is an error on all ranks, which names where it is."""

from __future__ import annotations

from multiproc.job import launch

NP = 2
# Also where the schedule is frozen, in a gradient, and in what a narrower type could hide.
SCRIPT = """
import torch, mydist as md
md.init()
last = md.size() - 1
bad = lambda value: torch.tensor([1.0, value if md.rank() == last else 1.0])
def refused(words, ranks, call, *arguments, **more):
    try:
        call(*arguments, **more)
    except md.MismatchError as error:
        assert words in str(error), error
        assert error.failure["ranks"] == ranks, error.failure
    else:
        raise AssertionError(f"not refused: {words}")
nan, infinite = float("nan"), float("-inf")
head = "the input of this allreduce is not finite:\\n  rank 1 (host localhost): "
for _ in range(6):
    assert md.allreduce(torch.ones(2), name="x", op=md.Sum).tolist() == [md.size()] * 2
assert md.stats()["frozen_steps"] > 0
refused("tensor 'x': " + head + "NaN", [last], md.allreduce, bad(nan), name="x", op=md.Sum)
assert md.allreduce(torch.ones(2), name="x", op=md.Sum).tolist() == [md.size()] * 2
refused(head + "infinite", [last], md.allreduce, bad(infinite), compression=md.Compression.fp16)
for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.complex64):
    refused(head + "NaN", [last], md.allreduce, bad(nan).to(dtype))
refused("ranks 0, 1 (host localhost): NaN", [0, 1], md.reducescatter, torch.full((2, 2), nan))
refused("is not finite", [last], md.grouped_allreduce, [torch.ones(2), bad(nan)])
# What may be there, and what is not reduced.
assert md.allreduce(bad(infinite), op=md.Min).tolist() == [1.0, infinite]
refused(head + "NaN", [last], md.allreduce, bad(nan), op=md.Max)
assert md.allgather(bad(nan)).isnan().sum() == 1
assert md.allreduce(torch.zeros(0), op=md.Sum).numel() == 0
assert md.allreduce(torch.tensor([7])).tolist() == [7]
weight = torch.nn.Parameter(torch.ones(2))
optimizer = md.DistributedOptimizer(torch.optim.SGD([weight], 0.1), [("weight", weight)])
def step(value):
    optimizer.zero_grad()
    (weight * bad(value)).sum().backward()
    optimizer.step()
refused("weight", [last], step, nan)
step(1.0)
assert torch.allclose(weight, torch.full((2,), 0.9)), weight
md.shutdown()
"""


def test_all_ranks_name_the_tensor_and_who_has_the_number() -> None:
    env = {"MYDIST_FREEZE_AFTER": "2"}
    launch(NP, "local", "-c", SCRIPT, flags=["--check-finite"], env=env).expect_success()
