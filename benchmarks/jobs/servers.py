"""S1 to S6: tables of the parameter server beside torch.distributed.rpc, by turns.

Start it with `mydistrun --servers 1`: two workers, and one server process of each kind. Whether
they share memory says MYDIST_SHARED_MEMORY; TensorPipe then takes its transport shm, else uv.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

import mydist as md
from mydist.bench.contest import Stopwatch, is_falsified, share
from mydist.bench.implementations import Mydist
from mydist.bench.problem import WrongResult
from mydist.bench.results import Measured, format_size, median
from mydist.launcher.endpoints import free_port
from mydist.optim.strategies.simulated_table import local_table

from .job import Figures, JobArguments, times

# Bytes of a vector, and calls in a round.
_SIZES = {4: 200, 64 << 10: 100, 1 << 20: 30, 64 << 20: 2}
_ROUNDS, _WARM_UPS = 7, 2
_MOST_EXACT = 1 << 24  # Float32 counts up to here.
_TABLE_ROWS, _WIDTH, _BATCH = 10_000_000, 64, 4096
# Rows of each rank that are touched, spread over the table.
_TOUCHED, _SCATTER = 1 << 17, 2_654_435_761

PushPull = Callable[[torch.Tensor], torch.Tensor]


def measure(arguments: JobArguments) -> Figures:
    """Medians of push_pull by size, and how many times longer the peer takes."""
    smoke = arguments.smoke
    sizes = {4: 2, 64 << 10: 2} if smoke else _SIZES
    rounds = 1 if smoke else _ROUNDS
    ranks = Mydist()
    found: dict[tuple[str, int], Measured] = {}
    pushes: dict[tuple[str, int], int] = {}
    with _rpc_server() as peer:
        ways: dict[str, dict[int, PushPull]] = {
            "mydist": {size: _table(size).push_pull for size in sizes},
            "rpc": dict.fromkeys(sizes, peer),
        }
        for index in range(rounds):
            for size, calls in sizes.items():
                for name in list(ways)[:: 1 if index % 2 == 0 else -1]:
                    more = _turn(ranks, name, ways[name][size], size, calls, pushes)
                    found.setdefault((name, size), Measured()).add(more)
    figures: Figures = {}
    for size in sizes:
        ours, theirs = found["mydist", size], found["rpc", size]
        text = format_size(size)
        figures |= times(f"push_pull_{text}", ours) | times(f"rpc_{text}", theirs)
        figures[f"ratio_{text}"] = median(theirs.times_us) / median(ours.times_us)
    return figures


def _table(size: int) -> md.ps.Table:
    start = torch.zeros(size // 4)
    rule, consistency = md.ps.SGD(lr=1.0), md.ps.Async()
    return md.ps.Table(f"bench.{size}", like=start, rule=rule, consistency=consistency)


@contextmanager
def _rpc_server() -> Iterator[PushPull]:
    """The peer's server, to which each rank is connected. Collective."""
    from torch.distributed import rpc  # Not every build of torch has it.

    from . import rpc_peer

    transport = "shm" if os.environ.get("MYDIST_SHARED_MEMORY", "1") == "1" else "uv"
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "TP_SOCKET_IFNAME": "lo"}
    port = md.broadcast_object(free_port("127.0.0.1"), 0, name="bench.rpc_port")
    process: subprocess.Popen[bytes] | None = None
    if md.rank() == 0:
        process = rpc_peer.start_server(port, md.size(), transport)
    rpc_peer.join(port, md.rank(), md.size(), transport)
    yield rpc_peer.call
    # Not after an error: the others would never come.
    rpc.shutdown()
    if process is not None:
        process.wait(timeout=60)


def _turn(
    ranks: Mydist,
    name: str,
    push_pull: PushPull,
    size: int,
    calls: int,
    pushes: dict[tuple[str, int], int],
) -> Measured:
    """One way at one size: all ranks push ones at once; what they get counts the pushes of all."""
    gradient, watch = torch.ones(size // 4), Stopwatch(_WARM_UPS)
    for _ in range(_WARM_UPS + calls):
        ranks.barrier()
        done = pushes.get((name, size), 0)
        answer = watch.time(partial(push_pull, gradient))
        ranks.await_others()
        pushes[name, size] = done + md.size()
        # The answers of two pushes at once may have one of them or both.
        least, most = done + 1, done + md.size()
        if is_falsified(f"{name}-push_pull"):
            answer[-1] += 1
        low, high = -answer.max().item(), -answer.min().item()
        if not (least <= low <= high <= most < _MOST_EXACT):
            raise WrongResult(f"{name}: {low} to {high} pushes, expected {least} to {most}")
    return share(watch.measured)


def measure_rules(arguments: JobArguments) -> Figures:
    """S5: what the update of 64 MiB takes a server, on one core. In this process, by turns.

    Each rule has pieces of 1 MiB, as on a server. The gradient lies in memory that no rule touches.
    """
    rate = 0.5  # A push of ones subtracts it, by each of these.
    rules: dict[str, md.ps.Rule] = {
        "sgd": md.ps.SGD(lr=rate),
        "adam": md.ps.Adam(lr=rate),
        "dc_asgd": md.ps.DCASGD(lr=rate, lam=1.0, adaptive=True),
    }
    pieces = arguments.pick(64, 1)
    start, gradient = torch.zeros(1 << 18), torch.ones(pieces, 1 << 18)
    tables = {
        name: [local_table(start, name, rule, md.ps.Async(), [0]) for _ in range(pieces)]
        for name, rule in rules.items()
    }
    watches = {name: Stopwatch(_WARM_UPS) for name in rules}
    result = torch.empty(1 << 18)
    for index in range(_WARM_UPS + arguments.pick(20, 1)):
        for name in list(rules)[:: 1 if index % 2 == 0 else -1]:
            pushed = tables[name]

            def push(pushed: list[Any] = pushed) -> torch.Tensor:
                for table, part in zip(pushed, gradient, strict=True):
                    table.push(0, part.data_ptr(), 0)
                return gradient

            watches[name].time(push)
            for table in pushed:  # What the worker has seen; DC-ASGD keeps a copy.
                table.pull(0, result.data_ptr())
            expected = -(index + 1) * rate
            if is_falsified(f"rule-{name}"):
                expected += 1
            if not torch.allclose(result, torch.tensor(expected), rtol=1e-4):
                raise WrongResult(f"rules: {name} gives {float(result[0])}, expected {expected}")
    figures: Figures = {}
    for name, watch in watches.items():
        figures |= times(f"rule_{name}", watch.measured)
    return figures


def measure_rows(arguments: JobArguments) -> Figures:
    """S6: 4096 rows of 64 numbers, of 10^7, pulled and then pushed by all workers at once.

    `first_rows` is a pull of rows that no worker has touched before, which the server makes.
    """
    rule, start = md.ps.SGD(lr=1.0), md.ps.Zeros()
    table = md.ps.RowTable("bench.rows", _TABLE_ROWS, _WIDTH, rule, init=start)
    # Each rank has rows of its own: it can check what it pulls.
    spread = torch.arange(arguments.pick(_TOUCHED, _BATCH)) * _SCATTER % (_TABLE_ROWS // md.size())
    own = spread * md.size() + md.rank()
    ranks, random = Mydist(), torch.Generator().manual_seed(md.rank())
    watches = {"first": Stopwatch(), "pull": Stopwatch(_WARM_UPS), "push": Stopwatch(_WARM_UPS)}
    gradients = torch.ones(_BATCH, _WIDTH)

    def timed(name: str, ids: torch.Tensor) -> torch.Tensor:
        def call() -> torch.Tensor:
            if name != "push":
                return table.pull(ids)
            table.push(ids, gradients)
            return gradients

        ranks.barrier()
        result = watches[name].time(call)
        ranks.await_others()
        return result

    for ids in own.view(-1, _BATCH):
        timed("first", ids)
    for _ in range(_WARM_UPS + arguments.pick(200, 2)):
        ids = own[torch.randint(len(own), (_BATCH,), generator=random)]
        before = timed("pull", ids)
        timed("push", ids)
        _, which, counts = torch.unique(ids, return_inverse=True, return_counts=True)
        after = table.pull(ids)
        if is_falsified("mydist-rows"):
            after[-1] += 1
        if not torch.equal(after, before - counts[which].unsqueeze(1)):
            raise WrongResult("rows: a pull does not have what this worker has pushed")
    figures: Figures = {}
    for name, watch in watches.items():
        figures |= times(f"{name}_rows", share(watch.measured))
    seconds = (figures["pull_rows_us"] + figures["push_rows_us"]) / 1e6
    figures["rows_per_second"] = md.size() * _BATCH / seconds
    cores = min(md.size(), len(os.sched_getaffinity(0)))
    figures["rows_per_second_and_core"] = figures["rows_per_second"] / cores
    return figures
