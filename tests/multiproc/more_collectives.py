"""What every_collective leaves out, on the whole job and on any device: large tensors, factors,
groups, compression, averages of integers, other process sets, ranks that have joined, a stream that
is still busy.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable

import torch

import mydist as md
from multiproc.checks.integer_averages import average, everybody, my_rows
from multiproc.reference import INTEGERS, expect_close, expect_equal, make, reduce

FACTORED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
# Of several MiB, in no way even.
LARGE = 1_000_003
BUSY_STEPS = 8


def large_tensors_with_factors(device: torch.device) -> None:
    for dtype in FACTORED:
        inputs = [make(rank, dtype, (LARGE,)) for rank in range(md.size())]
        # One element behind an aligned address.
        room = torch.empty(LARGE + 1, dtype=dtype, device=device)
        mine = room[1:]
        mine.copy_(inputs[md.rank()])
        got = md.allreduce(
            mine, op=md.Sum, prescale_factor=0.5, postscale_factor=4.0, name=f"factors.{dtype}"
        )
        magnitude = 2.0 * reduce([tensor.abs().double() for tensor in inputs], "Sum")
        expect_close(got, 2.0 * reduce(inputs, "Sum"), magnitude)
        expect_equal(mine, inputs[md.rank()])


def groups_of_uneven_tensors(device: torch.device) -> None:
    size, rank = md.size(), md.rank()
    pieces = [
        [make(r, torch.float32, (rows + r, 5), seed=rows) for r in range(size)] for rows in (1, 700)
    ]
    gathered = md.grouped_allgather([piece[rank].to(device) for piece in pieces], name="gathered")
    for got, piece in zip(gathered, pieces, strict=True):
        expect_equal(got, torch.cat(piece))
    whole = [
        [make(r, torch.float32, (rows * size, 5), seed=rows) for r in range(size)]
        for rows in (2, 900)
    ]
    scattered = md.grouped_reducescatter(
        [tensors[rank].to(device) for tensors in whole], op=md.Sum, name="scattered"
    )
    for got, tensors in zip(scattered, whole, strict=True):
        rows = len(tensors[0]) // size
        share = slice(rows * rank, rows * (rank + 1))
        magnitude = reduce([tensor.abs().double() for tensor in tensors], "Sum")
        expect_close(got, reduce(tensors, "Sum")[share], magnitude[share])


def compressed_tensors(device: torch.device) -> None:
    for compression in (md.Compression.fp16, md.Compression.bf16):
        inputs = [make(rank, torch.float32, (LARGE,), seed=3) for rank in range(md.size())]
        narrow = [tensor.to(compression.wire_dtype) for tensor in inputs]
        magnitude = reduce([tensor.abs().double() for tensor in narrow], "Sum")
        tensors = [inputs[md.rank()].to(device), inputs[md.rank()][:77].to(device)]
        got = md.grouped_allreduce(
            tensors, op=md.Sum, compression=compression, name=f"narrow.{compression.wire_dtype}"
        )
        assert got[0].dtype == torch.float32
        wanted = reduce(narrow, "Sum")
        expect_close(got[0].to(compression.wire_dtype), wanted, magnitude)
        expect_close(got[1].to(compression.wire_dtype), wanted[:77], magnitude[:77])


def averages_of_integers(device: torch.device) -> None:
    """The ends of each dtype are among the elements: a sum in the dtype itself wraps."""
    everyone = [everybody(dtype, (300, 101), seed=i) for i, dtype in enumerate(INTEGERS)]
    mine = [inputs[md.rank()].to(device, copy=True) for inputs in everyone]
    for dtype, inputs, tensor in zip(INTEGERS, everyone, mine, strict=True):
        expect_equal(md.allreduce(tensor, name=f"average.{dtype}"), average(inputs))
        rows = md.reducescatter(tensor, op=md.Average, name=f"average.rows.{dtype}")
        expect_equal(rows, my_rows(average(inputs)))
        expect_equal(tensor, inputs[md.rank()])
    md.grouped_allreduce_(mine, name="average.group")
    for tensor, inputs in zip(mine, everyone, strict=True):
        expect_equal(tensor, average(inputs))


def another_process_set(device: torch.device) -> None:
    """A communicator of its own, beside the global set's, of all ranks but the first."""
    others = md.add_process_set(list(range(1, md.size())))
    for seed in range(3):
        everyone = [make(rank, torch.float32, (501,), seed=seed) for rank in range(md.size())]
        if others.included():
            got = md.allreduce(
                everyone[md.rank()].to(device), op=md.Sum, name="others", process_set=others
            )
            magnitude = reduce([tensor.abs().double() for tensor in everyone[1:]], "Sum")
            expect_close(got, reduce(everyone[1:], "Sum"), magnitude)
        got = md.allreduce(everyone[md.rank()].to(device), op=md.Sum, name="all")
        magnitude = reduce([tensor.abs().double() for tensor in everyone], "Sum")
        expect_close(got, reduce(everyone, "Sum"), magnitude)
    md.remove_process_set(others)


def ranks_that_have_joined(device: torch.device) -> None:
    """The last one has no data for the second call."""
    inputs = [make(rank, torch.float32, (333,), seed=9) for rank in range(md.size())]
    mine = inputs[md.rank()].to(device)
    md.allreduce(mine, op=md.Sum, name="before")
    if md.rank() < md.size() - 1:
        got = md.allreduce(mine, op=md.Sum, name="without the last")
        magnitude = reduce([tensor.abs().double() for tensor in inputs[:-1]], "Sum")
        expect_close(got, reduce(inputs[:-1], "Sum"), magnitude)
    md.join()


def inputs_that_are_still_computed(device: torch.device) -> None:
    """On a stream of the caller's, which is far behind the host when the call is made; and memory
    that is let go of at once."""
    if device.type != "cuda":
        return
    side = torch.cuda.Stream(device)
    for step in range(BUSY_STEPS):
        with torch.cuda.stream(side):
            torch.cuda._sleep(20_000_000)  # Cycles: about 10 ms.
            mine = torch.full((LARGE,), float(step + md.rank()), device=device)
            handle = md.allreduce_async(mine, op=md.Sum, name="busy")
            del mine
            torch.full((LARGE,), -1.0, device=device)  # May get its memory.
        got = md.synchronize(handle)
        wanted = float(sum(step + rank for rank in range(md.size())))
        assert bool((got == wanted).all()), f"step {step}: {got[:4]}, expected {wanted}"


CHECKS: dict[str, Callable[[torch.device], None]] = {
    check.__name__: check
    for check in (
        large_tensors_with_factors,
        groups_of_uneven_tensors,
        compressed_tensors,
        averages_of_integers,
        another_process_set,
        ranks_that_have_joined,
        inputs_that_are_still_computed,
    )
}


def complaint_of(check: Callable[[], None]) -> str:
    """The traceback of what was wrong; empty when nothing was."""
    try:
        check()
    except AssertionError:
        return traceback.format_exc()
    return ""
