"""Every collective over every path that the data can take: every_path.py FOLDER PATHS

PATHS is JSON: {name: environment}. The job runs once for each that the CPU allows, from init to
shutdown, with the same inputs; each is overwritten as soon as its call has returned. Results are
compared with float64, and rank r writes FOLDER/rank<r>.json: {name: {"kernels": …, "path": …,
"frozen_steps": …, "results": {call: SHA-256 of the bytes}}}.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from multiproc.checks.ops import REDUCE_OPS
from multiproc.pretended_hosts import pretend_hosts
from multiproc.reference import expect_close, expect_equal, make, raw, reduce
from multiproc.refused_calls import refuse_calls

import mydist as md

# In float32: a post alone, a flag line, a slot, folded where they lie, several chunks.
COUNTS = (5, 28, 400, 5_000, 70_000, 400_001)
OTHER_TYPES = (torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.uint8)

Results = dict[str, str]


@functools.cache
def content(rank: int, count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return make(rank, dtype, (count,), seed=count)


@functools.cache
def expected(count: int, op: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The reduction of all ranks' tensors and of their absolute values."""
    inputs = [content(rank, count, dtype) for rank in range(md.size())]
    return reduce(inputs, op), reduce([tensor.abs().double() for tensor in inputs], op)


def mine(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return content(md.rank(), count, dtype).clone()


def spoil(*tensors: torch.Tensor) -> None:
    for tensor in tensors:
        tensor.fill_(99)


def digest(tensors: Sequence[torch.Tensor]) -> str:
    return hashlib.sha256(b"".join(raw(tensor) for tensor in tensors)).hexdigest()


def reductions(results: Results) -> None:
    cases = [("Sum", count, torch.float32) for count in COUNTS]
    cases += [(op, count, torch.float32) for op in REDUCE_OPS for count in (400, 70_000)]
    cases += [("Sum", count, dtype) for dtype in OTHER_TYPES for count in (28, 5_000, 70_000)]
    for op, count, dtype in cases:
        tensor = mine(count, dtype)
        name = f"{op} {count} {dtype}"
        result = md.allreduce(tensor, op=REDUCE_OPS[op], name=name)
        spoil(tensor)
        wanted, magnitude = expected(count, op, dtype)
        expect_close(result, wanted, None if op in ("Min", "Max") else magnitude)
        results[name] = digest([result])
    for count in (28, 70_000):
        tensor = mine(count)
        result = md.allreduce(tensor, op=md.Sum, prescale_factor=0.3, postscale_factor=7.0)
        spoil(tensor)
        wanted, magnitude = expected(count, "Sum", torch.float32)
        expect_close(result, 2.1 * wanted, 4 * magnitude)
        results[f"scaled {count}"] = digest([result])
        tensor = mine(count)
        result = md.allreduce(tensor, op=md.Adasum)
        spoil(tensor)
        results[f"Adasum {count}"] = digest([result])


def many(results: Results) -> None:
    """In place, in a group, and in flight together, as they may be fused."""
    tensors = [mine(count) for count in COUNTS]
    for tensor, count in zip(tensors, COUNTS, strict=True):
        md.allreduce_(tensor, op=md.Sum, name=f"in place {count}")
    grouped_inputs = [mine(count) for count in COUNTS]
    grouped = md.grouped_allreduce(grouped_inputs, op=md.Sum, name="group")
    spoil(*grouped_inputs)
    flown_inputs = [mine(count) for count in COUNTS]
    handles = [
        md.allreduce_async(tensor, op=md.Sum, name=f"flown {i}")
        for i, tensor in enumerate(flown_inputs)
    ]
    flown = []
    for handle, tensor in zip(handles, flown_inputs, strict=True):
        flown.append(md.synchronize(handle))
        spoil(tensor)
    for name, outputs in (("in place", tensors), ("grouped", grouped), ("flown", flown)):
        for count, output in zip(COUNTS, outputs, strict=True):
            expect_close(output, *expected(count, "Sum", torch.float32))
        results[name] = digest(outputs)


def subset(results: Results) -> None:
    """In a set of all ranks but the first, which may share out hosts in another way."""
    members = md.add_process_set(list(range(1, md.size())))
    if md.rank() > 0:
        for op, count in (("Sum", 28), ("Average", 5_000), ("Product", 70_000)):
            tensor = mine(count)
            result = md.allreduce(tensor, op=REDUCE_OPS[op], process_set=members)
            spoil(tensor)
            results[f"{op} {count} subset"] = digest([result])
    md.remove_process_set(members)


def moves(results: Results, rows: int) -> None:
    """What only moves data gives the inputs' own bits; a sum that is dealt out is a sum."""
    rank, size = md.rank(), md.size()
    before, after = (rank - 1) % size, (rank + 1) % size
    everyone = [content(r, rows + r) for r in range(size)]

    def keep(name: str, result: torch.Tensor | None, wanted: torch.Tensor | None) -> None:
        assert (result is None) == (wanted is None), name
        if result is not None and wanted is not None:
            expect_equal(result, wanted)
        results[f"{name} {rows}"] = digest([] if result is None else [result])

    def call(function: Callable[[torch.Tensor], torch.Tensor | None]) -> torch.Tensor | None:
        tensor = mine(rows + rank)
        result = function(tensor)
        spoil(tensor)
        return result

    keep("allgather", call(md.allgather), torch.cat(everyone))
    for root in {0, size - 1}:
        gathered = call(functools.partial(md.gather, root_rank=root))
        keep(f"gather {root}", gathered, torch.cat(everyone) if rank == root else None)
        same = mine(rows)
        keep(f"broadcast {root}", md.broadcast(same, root), content(root, rows))
        spoil(same)
    counts = [rows // size + r for r in range(size)]
    start = sum(counts[:rank])
    total = sum(counts)
    tensor = mine(total)
    output, _ = md.alltoall(tensor, counts)
    spoil(tensor)
    pieces = [content(r, total)[start : start + counts[rank]] for r in range(size)]
    keep("alltoall", output, torch.cat(pieces))
    whole = mine(total)
    keep("scatter", md.scatter(whole, counts, 0), content(0, total)[start : start + counts[rank]])
    spoil(whole)
    if size > 1:
        into, sent = torch.zeros(rows), mine(rows)
        handle = md.send_async(sent, after, name="ring")
        md.recv(into, before, name="ring")
        md.synchronize(handle)
        spoil(sent)
        keep("ring", into, content(before, rows))
    summed, magnitude = expected(rows, "Sum", torch.float32)
    tensor = mine(rows)
    piece = md.reducescatter(tensor, op=md.Sum)
    spoil(tensor)
    share = torch.tensor_split(torch.arange(rows), size)[rank]
    expect_close(piece, summed[share], magnitude[share])
    results[f"reducescatter {rows}"] = digest([piece])
    tensor = mine(rows)
    rooted = md.reduce(tensor, size - 1, op=md.Sum)
    spoil(tensor)
    if rooted is not None:
        expect_close(rooted, summed, magnitude)
    results[f"reduce {rows}"] = digest([] if rooted is None else [rooted])


def repeated(results: Results) -> None:
    """The same step again and again, until nobody negotiates it any more where that may be."""
    kept: list[torch.Tensor] = []
    for step in range(60):
        tensors = [mine(count) + step for count in (5, 400, 5_000)]
        handles = [
            md.allreduce_async(tensor, op=md.Sum, name=f"again {i}")
            for i, tensor in enumerate(tensors)
        ]
        sums = [md.synchronize(handle) for handle in handles]
        rows = md.allgather(mine(28) + step, name="rows again")
        spoil(*tensors)
        expect_equal(rows, torch.cat([content(r, 28) + step for r in range(md.size())]))
        for result, count in zip(sums, (5, 400, 5_000), strict=True):
            wanted, magnitude = expected(count, "Sum", torch.float32)
            expect_close(result, wanted + md.size() * step, magnitude + md.size() * step)
        kept += [*sums, rows]
    results["repeated"] = digest(kept)


def training(results: Results) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.Linear(300, 70))
    optimizer = md.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), gradient_as_buffer_view=True
    )
    for step in range(3):
        optimizer.zero_grad(set_to_none=step == 1)
        model(content(md.rank(), 80).reshape(4, 20)).pow(2).mean().backward()
        optimizer.step()
    results["training"] = digest(list(model.parameters()))


def main() -> None:
    folder, paths = Path(sys.argv[1]), json.loads(sys.argv[2])
    launched = dict(os.environ)
    report = {}
    for name, environment in paths.items():
        os.environ.clear()
        os.environ.update(launched | environment)
        pretend_hosts()
        refuse_calls()  # For good: what comes later does without them as well.
        try:
            md.init()
        except ValueError as error:
            if "this CPU does not support" not in str(error):
                raise
            continue
        results: Results = {}
        reductions(results)
        many(results)
        if "TEST_RANKS_PER_HOST" in os.environ:
            subset(results)
        repeated(results)
        for rows in (28, 3_000, 60_000):
            moves(results, rows)
        if md.size() <= 3:  # It takes each rank a second of imports.
            training(results)
        facts = md.explain().facts
        kernels, data_path = facts["kernels"].choice, facts["data path"]
        report[name] = {
            "kernels": kernels,
            "path": str(data_path),
            "frozen_steps": md.stats()["frozen_steps"],
            "results": results,
        }
        rank = md.rank()
        md.shutdown()
    (folder / f"rank{rank}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    main()
