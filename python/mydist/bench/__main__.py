"""The command: mydistrun -np N python -m mydist.bench allreduce|step [options]."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import mydist as md
from mydist.bench.allreduce import Implementation, Mydist, Plan, measure
from mydist.bench.peers import (
    OpenMpi,
    OtherMydist,
    PeerUnavailable,
    SeparatePeer,
    TorchGloo,
    close_torch_gloo,
)
from mydist.bench.results import Row, format_table, parse_size, write_json
from mydist.bench.step import StepPlan, measure_step

PEERS = ("openmpi", "torch-gloo", "mydist-mpi", "mydist-gloo")
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints on rank 0; returns the exit code."""
    options = _parser().parse_args(arguments)
    md.init()
    try:
        rows = _allreduce(options) if options.benchmark == "allreduce" else _step(options)
        close_torch_gloo()
        if md.rank() == 0:
            print(format_table(rows), flush=True)
            if options.json is not None:
                write_json(rows, options.json)
    finally:
        md.shutdown()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m mydist.bench",
        description="mydist next to its peers in one run; start it with mydistrun.",
    )
    commands = parser.add_subparsers(dest="benchmark", required=True)
    allreduce = commands.add_parser("allreduce", help="latency and bandwidth by size")
    allreduce.add_argument(
        "--sizes", type=_sizes, default=_sizes("8,64K,4M,64M"), help="bytes per rank: 8,64K,4M"
    )
    allreduce.add_argument("--dtype", choices=DTYPES, default="float32")
    allreduce.add_argument(
        "--peers", type=_peers, default=[], help=f"comma-separated, of {', '.join(PEERS)}"
    )
    allreduce.add_argument("--iterations", type=_positive, help="per size and round")
    step = commands.add_parser("step", help="a training step next to DDP over gloo")
    step.add_argument("--batch", type=_positive, default=32, help="images per rank")
    step.add_argument("--steps", type=_positive, default=20, help="per round")
    for command in (allreduce, step):
        command.add_argument("--rounds", type=_positive, default=5)
        command.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
    return parser


def _allreduce(options: argparse.Namespace) -> list[Row]:
    dtype: torch.dtype = getattr(torch, options.dtype)
    plan = Plan(options.sizes, dtype, options.rounds, options.iterations)
    inside: list[Implementation] = [Mydist()]
    outside: list[SeparatePeer] = []
    for name in options.peers:
        if name == "torch-gloo":
            inside.append(TorchGloo())
        elif name != inside[0].name:
            outside += _separate(name, dtype)
    return measure(plan, inside, outside)


def _separate(name: str, dtype: torch.dtype) -> list[SeparatePeer]:
    """The peer on rank 0 and on all others a stand-in; nothing when it cannot run here."""
    peer: SeparatePeer | None = None
    problem = ""
    if md.local_size() != md.size():
        problem = "it is started on one host only"
    elif md.rank() == 0:
        try:
            if name == "openmpi":
                peer = OpenMpi(dtype, md.size())
            else:
                peer = OtherMydist(name.removeprefix("mydist-"), dtype, md.size())
        except PeerUnavailable as error:
            problem = str(error)
    problem = md.broadcast_object(problem, 0, name=f"bench.{name}")
    if problem:
        if md.rank() == 0:
            print(f"without {name}: {problem}", file=sys.stderr, flush=True)
        return []
    return [peer if peer is not None else _Elsewhere(name)]


class _Elsewhere:
    """A separate peer as ranks other than 0 see it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, sizes: object, iterations_at: object) -> dict[int, list[float]]:
        """Only rank 0 runs peers."""
        raise AssertionError("separate peers run on rank 0")


def _step(options: argparse.Namespace) -> list[Row]:
    return measure_step(StepPlan(options.batch, options.steps, options.rounds))


def _sizes(text: str) -> list[int]:
    try:
        return [parse_size(part) for part in text.split(",")]
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _peers(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(
                f"unknown peer '{name}', expected one of {', '.join(PEERS)}"
            )
    return names


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not a positive integer")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
