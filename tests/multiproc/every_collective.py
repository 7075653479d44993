"""Each collective once on a process set, compared with what one process computes."""

from __future__ import annotations

import torch

import mydist as md
from multiproc.checks.ops import REDUCE_OPS
from multiproc.reference import expect_close, expect_equal, has_meaning, make, reduce


class Members:
    """The ranks of a set, with the input that each of them has; its own lies on the device."""

    def __init__(
        self, process_set: md.ProcessSet, dtype: torch.dtype, label: str, device: torch.device
    ) -> None:
        self.process_set = process_set
        self.dtype = dtype
        self.device = device
        self.label = f"{label}.{dtype}"
        self.ranks = process_set.ranks
        self.index = process_set.rank()

    def name(self, call: str) -> str:
        return f"{self.label}.{call}"

    def input(self, rank: int, rows: int = 6, seed: int = 0) -> torch.Tensor:
        return make(rank, self.dtype, (rows, 3), seed=seed)

    def inputs(self, rows: int = 6, seed: int = 0) -> list[torch.Tensor]:
        return [self.input(rank, rows, seed) for rank in self.ranks]

    def mine(self, rows: int = 6, seed: int = 0) -> torch.Tensor:
        return self.input(md.rank(), rows, seed).to(self.device)


def reductions(m: Members) -> None:
    for op, number in REDUCE_OPS.items():
        if not has_meaning(op, m.dtype):
            continue
        wanted = reduce(m.inputs(), op)
        magnitude = None if op in ("Min", "Max") else _magnitude(m, op)
        result = md.allreduce(
            m.mine(), op=number, name=m.name(f"allreduce.{op}"), process_set=m.process_set
        )
        expect_close(result, wanted, magnitude)
        rows = _share(6, len(m.ranks))[m.index]
        piece = md.reducescatter(
            m.mine(), op=number, name=m.name(f"reducescatter.{op}"), process_set=m.process_set
        )
        expect_close(piece, wanted[rows], None if magnitude is None else magnitude[rows])
        root = m.ranks[-1]
        rooted = md.reduce(
            m.mine(), root, op=number, name=m.name(f"reduce.{op}"), process_set=m.process_set
        )
        if md.rank() == root:
            assert rooted is not None
            expect_equal(rooted, result)
        else:
            assert rooted is None


def _magnitude(m: Members, op: str) -> torch.Tensor | None:
    """Sums may cancel; how large the terms were bounds the error."""
    if m.dtype == torch.bool:
        return None
    terms = [tensor.abs().double() for tensor in m.inputs()]
    return reduce(terms, "Product" if op == "Product" else "Sum")


def _share(rows: int, size: int) -> list[slice]:
    """The rows of each rank when they are dealt out as evenly as possible."""
    slices, start = [], 0
    for i in range(size):
        count = rows // size + (i < rows % size)
        slices.append(slice(start, start + count))
        start += count
    return slices


def gatherings(m: Members) -> None:
    pieces = [m.input(rank, rows=i + 1) for i, rank in enumerate(m.ranks)]
    wanted = torch.cat(pieces)
    mine = pieces[m.index].to(m.device)
    expect_equal(md.allgather(mine, name=m.name("allgather"), process_set=m.process_set), wanted)
    for root in m.ranks:
        result = md.gather(mine, root, name=m.name(f"gather.{root}"), process_set=m.process_set)
        if md.rank() == root:
            assert result is not None
            expect_equal(result, wanted)
        else:
            assert result is None


def moves(m: Members) -> None:
    for root in (m.ranks[0], m.ranks[-1]):
        result = md.broadcast(
            m.mine(), root, name=m.name(f"broadcast.{root}"), process_set=m.process_set
        )
        expect_equal(result, m.input(root))
        _expect_scatter(m, root)
    # Rank i of the set sends j + 1 rows to rank j.
    size = len(m.ranks)
    splits = [j + 1 for j in range(size)]
    total = sum(splits)
    start = sum(splits[: m.index])
    output, received = md.alltoall(
        m.mine(total), splits, name=m.name("alltoall"), process_set=m.process_set
    )
    wanted = [tensor[start : start + m.index + 1] for tensor in m.inputs(total)]
    expect_equal(output, torch.cat(wanted))
    assert received.tolist() == [m.index + 1] * size


def _expect_scatter(m: Members, root: int) -> None:
    size = len(m.ranks)
    sends = md.rank() == root
    rows = m.mine(7) if sends else torch.empty(0, 3, dtype=m.dtype, device=m.device)
    whole = m.input(root, rows=7)
    even = md.scatter(
        rows, root_rank=root, name=m.name(f"scatter.{root}"), process_set=m.process_set
    )
    expect_equal(even, whole[_share(7, size)[m.index]])
    splits = [0] * (size - 1) + [7]
    uneven = md.scatter(
        rows, splits, root, name=m.name(f"scatter.splits.{root}"), process_set=m.process_set
    )
    expect_equal(uneven, whole if m.index == size - 1 else whole[:0])


def ring(m: Members) -> None:
    """Everybody sends to the next member and receives from the one before."""
    size = len(m.ranks)
    if size == 1:
        return
    after, before = m.ranks[(m.index + 1) % size], m.ranks[m.index - 1]
    into = torch.zeros(6, 3, dtype=m.dtype, device=m.device)
    handle = md.send_async(m.mine(), after, name=m.name("ring"), process_set=m.process_set)
    assert md.recv(into, before, name=m.name("ring"), process_set=m.process_set) is into
    assert md.synchronize(handle) is None
    expect_equal(into, m.input(before))


def objects(m: Members) -> None:
    everyone = md.allgather_object(
        {"rank": md.rank()}, name=m.name("objects"), process_set=m.process_set
    )
    assert everyone == [{"rank": rank} for rank in m.ranks]
    one = md.broadcast_object(
        md.rank(), m.ranks[-1], name=m.name("object"), process_set=m.process_set
    )
    assert one == m.ranks[-1]


def groups(m: Members) -> None:
    if not has_meaning("Sum", m.dtype):
        return
    tensors = [m.mine(rows, seed=rows) for rows in (1, 4)]
    results = md.grouped_allreduce(
        tensors,
        op=md.Max if m.dtype == torch.bool else md.Sum,
        name=m.name("group"),
        process_set=m.process_set,
    )
    for rows, result in zip((1, 4), results, strict=True):
        inputs = m.inputs(rows, seed=rows)
        magnitude = (
            None
            if m.dtype == torch.bool
            else reduce([tensor.abs().double() for tensor in inputs], "Sum")
        )
        expect_close(result, reduce(inputs, "Sum"), magnitude)


def run_all(
    process_set: md.ProcessSet,
    dtype: torch.dtype,
    label: str,
    device: torch.device | None = None,
) -> None:
    """Every collective on the set, of tensors on the device or the CPU; called by its members."""
    members = Members(process_set, dtype, label, device or torch.device("cpu"))
    reductions(members)
    gatherings(members)
    moves(members)
    ring(members)
    objects(members)
    groups(members)
    md.barrier(process_set)
