"""The command: mydistrun -np N python -m mydist.bench COLLECTIVE|step [options]."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

import mydist as md
from mydist.bench.contest import Plan, measure, pin_to_core
from mydist.bench.implementations import (
    Falsified,
    Implementation,
    Mydist,
    TorchGloo,
    close_torch_gloo,
)
from mydist.bench.peers import Gloo, OpenMpi, OtherMydist, PeerUnavailable, SeparatePeer
from mydist.bench.problem import COLLECTIVES
from mydist.bench.results import Measured, Row, format_table, parse_size, write_json
from mydist.bench.step import MODELS, StepPlan, measure_step
from mydist.job.bootstrap import launched_as

PEERS = ("openmpi", "gloo", "torch-gloo", "mydist-mpi", "mydist-gloo")
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints on rank 0; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.fake_hosts:
        _pretend_hosts(options.fake_hosts)
    # While rank 0 runs a peer as a job of its own, the others wait for it.
    os.environ.setdefault("MYDIST_STALL_WARNING_SECONDS", "0")
    md.init()
    try:
        rows = _step(options) if options.benchmark == "step" else _collective(options)
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
    for op in COLLECTIVES:
        _add_collective(commands.add_parser(op, help=f"{op}: latency and bandwidth by size"), op)
    step = commands.add_parser("step", help="a training step next to DDP over gloo")
    step.add_argument("--model", choices=tuple(MODELS), default="conv")
    step.add_argument("--batch", type=_positive, default=32, help="samples per rank")
    step.add_argument("--steps", type=_positive, default=20, help="per round")
    for command in commands.choices.values():
        command.add_argument("--rounds", type=_positive, default=5)
        command.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
        command.add_argument(
            "--fake-hosts", type=_positive, metavar="N", help="share the ranks out to N hosts"
        )
        # Makes the results of one implementation wrong; for the test that this is noticed.
        command.add_argument("--falsify", metavar="NAME", default="", help=argparse.SUPPRESS)
    return parser


def _add_collective(command: argparse.ArgumentParser, op: str) -> None:
    if op == "barrier":
        command.set_defaults(sizes=[0], dtype="float32")
    else:
        command.add_argument(
            "--sizes", type=_sizes, default=_sizes("8,64K,4M,64M"), help="bytes per rank: 8,64K,4M"
        )
        command.add_argument("--dtype", choices=DTYPES, default="float32")
    command.add_argument(
        "--peers", type=_peers, default=[], help=f"comma-separated, of {', '.join(PEERS)}"
    )
    command.add_argument("--iterations", type=_positive, help="per size and round")


def _pretend_hosts(count: int) -> None:
    """Must come before init; ranks in blocks of equal length as far as possible."""
    place = launched_as()
    if place is None:
        sys.exit(
            "mydist.bench: --fake-hosts needs a launcher that tells ranks: mydistrun or mpirun"
        )
    rank, size = place
    os.environ["MYDIST_HOST_ID"] = f"fake-host-{rank * count // size}"


def _collective(options: argparse.Namespace) -> list[Row]:
    dtype: torch.dtype = getattr(torch, options.dtype)
    plan = Plan(options.benchmark, options.sizes, dtype, options.rounds, options.iterations)
    one_host = options.fake_hosts is not None or md.local_size() == md.size()
    inside: list[Implementation] = [Mydist()]
    outside: list[SeparatePeer] = []
    for name in options.peers:
        if name == "torch-gloo":
            inside.append(TorchGloo(one_host))
        elif name != inside[0].name:
            outside += _separate(name, plan, one_host)
    pin_to_core(one_host)
    inside = [Falsified(i) if i.name == options.falsify else i for i in inside]
    return measure(plan, inside, outside)


def _separate(name: str, plan: Plan, one_host: bool) -> list[SeparatePeer]:
    """The peer on rank 0 and on all others a stand-in; nothing when it cannot run here."""
    peer: SeparatePeer | None = None
    problem = ""
    if md.rank() == 0:
        try:
            peer = _make(name, plan, one_host)
        except PeerUnavailable as error:
            problem = str(error)
    problem = md.broadcast_object(problem, 0, name=f"bench.{name}")
    if problem:
        if md.rank() == 0:
            print(f"without {name}: {problem}", file=sys.stderr, flush=True)
        return []
    return [peer if peer is not None else _Elsewhere(name)]


def _make(name: str, plan: Plan, one_host: bool) -> SeparatePeer:
    ranks = md.size()
    if not one_host:
        raise PeerUnavailable("it is started on one host only")
    if name == "openmpi":
        return OpenMpi(plan.op, plan.dtype, ranks)
    if name == "gloo":
        return Gloo(plan.op, plan.dtype, ranks)
    return OtherMydist(name.removeprefix("mydist-"), plan.dtype, ranks)


class _Elsewhere:
    """A separate peer as ranks other than 0 see it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def run(self, op: object, sizes: object, iterations_at: object) -> dict[int, Measured]:
        """Only rank 0 runs peers."""
        raise AssertionError("separate peers run on rank 0")


def _step(options: argparse.Namespace) -> list[Row]:
    plan = (options.model, options.batch, options.steps, options.rounds)
    return measure_step(StepPlan(*plan, falsified=options.falsify))


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
