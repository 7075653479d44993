"""The command: mydistrun -np N python -m mydist.bench COLLECTIVE|step|codecs [options]."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

import mydist as md
from mydist.bench.codecs import CodecPlan, run_codecs
from mydist.bench.contest import measure, pin_to_core, pretend_hosts
from mydist.bench.implementations import Implementation, Mydist, TorchGloo, close_torch_gloo
from mydist.bench.models import MODELS
from mydist.bench.peers import COMPILED_PEERS, REMOVED_PEERS, SeparatePeer, make_peers
from mydist.bench.problem import COLLECTIVES, Plan
from mydist.bench.results import Row, format_table, parse_size, write_json
from mydist.bench.step import StepPlan, measure_step

PEERS = ("openmpi", "gloo", "torch-gloo", "horovod")
DTYPES = ("float16", "bfloat16", "float32", "float64", "int32", "int64")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints on rank 0; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.fake_hosts:
        pretend_hosts(options.fake_hosts)
    # While rank 0 runs a peer as a job of its own, the others wait for it.
    os.environ.setdefault("MYDIST_STALL_WARNING_SECONDS", "0")
    md.init()
    try:
        if options.benchmark == "codecs":
            _codecs(options)
            return 0
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
    step.add_argument(
        "--peers",
        choices=("horovod", "ddp-mydist", "fsdp"),
        action="append",
        default=[],
        help="train with it as well: DDP over the backend mydist, FSDP2 over mydist and over gloo",
    )
    codecs = commands.add_parser(
        "codecs", help="what codecs cost here, and which links they speed up"
    )
    codecs.add_argument(
        "--sizes",
        type=_sizes,
        default=_sizes("1M,64M"),
        help="bytes of which the costs are measured",
    )
    codecs.add_argument(
        "--size",
        type=_size,
        default=64 << 20,
        help="bytes that are summed up in a job of more ranks",
    )
    codecs.add_argument(
        "--hosts",
        type=_positive,
        help="between which the link is: as many as ranks, 2 for one rank",
    )
    for command in commands.choices.values():
        command.add_argument("--rounds", type=_positive, default=5)
        command.add_argument("--json", type=Path, metavar="FILE", help="also write the rows here")
        command.add_argument(
            "--fake-hosts", type=_positive, metavar="N", help="share the ranks out to N hosts"
        )
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


def _collective(options: argparse.Namespace) -> list[Row]:
    dtype: torch.dtype = getattr(torch, options.dtype)
    plan = Plan(options.benchmark, options.sizes, dtype, options.rounds, options.iterations)
    one_host = options.fake_hosts is not None or md.local_size() == md.size()
    inside: list[Implementation] = [Mydist()]
    if "torch-gloo" in options.peers:
        inside.append(TorchGloo(one_host))
    outside: list[SeparatePeer] = []
    if md.rank() == 0:
        tell = partial(print, file=sys.stderr, flush=True)
        compiled = [name for name in options.peers if one_host and name in COMPILED_PEERS]
        if compiled:
            tell(f"compiling {' and '.join(compiled)}, some seconds for each")
        outside = make_peers(options.peers, plan, md.size(), one_host, tell)
    pin_to_core(one_host)
    return measure(plan, inside, outside)


def _step(options: argparse.Namespace) -> list[Row]:
    return measure_step(
        StepPlan(options.model, options.batch, options.steps, options.rounds, options.peers)
    )


def _codecs(options: argparse.Namespace) -> None:
    hosts = options.hosts or max(2, md.size())
    plan = CodecPlan(options.sizes, options.size, options.rounds, hosts)
    run_codecs(plan, options.json)


def _sizes(text: str) -> list[int]:
    return [_size(part) for part in text.split(",")]


def _size(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _peers(text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in (*PEERS, *REMOVED_PEERS):
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
