"""The benchmark of codecs: what they cost on one core of this machine, and what a link gains.

In a job of several ranks each codec also sums up a tensor over them, with force=True, in turns with
allreduces of the values as they are and cast.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, cast

import torch

import mydist as md
from mydist.bench.contest import Stopwatch, is_falsified, share
from mydist.bench.problem import WrongResult
from mydist.bench.results import Measured, Row, Subject, format_size, format_table, make_row
from mydist.codecs.codec import Codec
from mydist.codecs.cost import RAW, Cost, cost_of_cast, cost_of_codec, has_cost
from mydist.optim.encoding.encoded_sum import EncodedSum
from mydist.optim.encoding.exchanges import EXCHANGES

LINKS = (0.1, 1.0, 10.0, 100.0)  # Gbit/s
CASTS = {"fp16": torch.float16, "bf16": torch.bfloat16}
# Of arguments without a default. The values have a deviation of 1.
_GIVEN = {"value": 2.0}
_WIDTH = 512  # Values are matrices, as some codecs need.
_COST_BYTES = 64 << 20  # In one round of a cost, at least; small tensors are encoded often.


@dataclass(frozen=True)
class CodecPlan:
    """What is measured.

    Attributes:
        sizes: bytes of float32, of which the costs are measured.
        size: bytes that are summed up over the ranks.
        hosts: between which the link is.
    """

    sizes: Sequence[int]
    size: int
    rounds: int
    hosts: int


@dataclass(frozen=True)
class CodecRow:
    """What one codec costs at one size; the names are those of the JSON file.

    Costs are in ms per MB of float32 on one core. sum_ms are ms per MB of gradients that the hosts
    sum up, by the speed of the link in Gbit/s: encoding, link and decoding. pays_below_gbits is the
    speed above which values as they are arrive sooner.
    """

    codec: str
    size_bytes: int
    hosts: int
    bytes_per_value: float
    encode_ms_per_mb: float
    decode_ms_per_mb: float
    sum_ms: dict[str, float]
    pays_below_gbits: float


def every_codec() -> list[Codec]:
    """Those of `mydist.Compression` with the arguments that they have by default, and force."""
    found: list[Codec] = []
    for kind in vars(md.Compression).values():
        if isinstance(kind, type) and issubclass(kind, Codec) and kind.way in EXCHANGES:
            make = cast(Any, kind)  # A dataclass.
            names = [field.name for field in fields(make)]
            given = {name: value for name, value in _GIVEN.items() if name in names}
            found.append(make(**given, force=True))
    return found


def random_matrix(size_bytes: int, seed: int) -> torch.Tensor:
    """Normal values with a deviation of 1, as near to the size as whole rows are."""
    rows = max(1, size_bytes // (4 * _WIDTH))
    return torch.randn(rows, _WIDTH, generator=torch.Generator().manual_seed(seed))


def measure_costs(plan: CodecPlan) -> list[CodecRow]:
    """On the calling thread alone."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [row for size in plan.sizes for row in _costs_at(size, plan)]
    finally:
        torch.set_num_threads(threads)


def _costs_at(size: int, plan: CodecPlan) -> list[CodecRow]:
    values = random_matrix(size, 0)
    rounds = plan.rounds * max(1, _COST_BYTES // size)
    rows = [cost_row("none", size, plan.hosts, RAW)]
    for name, dtype in CASTS.items():
        rows.append(cost_row(name, size, plan.hosts, cost_of_cast(dtype, values, rounds)))
    for codec in filter(has_cost, every_codec()):
        cost = cost_of_codec(codec, values, rounds)
        rows.append(cost_row(codec.name, size, plan.hosts, cost))
    return rows


def cost_row(name: str, size: int, hosts: int, cost: Cost) -> CodecRow:
    """The row of what was measured."""
    return CodecRow(
        codec=name,
        size_bytes=size,
        hosts=hosts,
        bytes_per_value=cost.bytes_per_value,
        encode_ms_per_mb=cost.encode_ms,
        decode_ms_per_mb=cost.decode_ms,
        sum_ms={f"{gbits:g}": cost.sum_ms(hosts, gbits) for gbits in LINKS},
        pays_below_gbits=cost.pays_below(hosts),
    )


def format_costs(rows: Sequence[CodecRow]) -> str:
    """A line for each codec: its costs at all sizes, and what links gain at the last size."""
    sizes = list(dict.fromkeys(row.size_bytes for row in rows))
    last = [row for row in rows if row.size_bytes == sizes[-1]]
    at = {(row.codec, row.size_bytes): row for row in rows}
    width = max(len("codec"), *(len(row.codec) for row in last))
    labels = [format_size(size) for size in sizes]
    lines = [
        f"{'':<{width}} {'bytes per':>9}  {_over('encode, ms per MB', labels)}"
        f"  {_over('decode, ms per MB', labels)}",
        f"{'codec':<{width}} {'value':>9}" + 2 * ("  " + _cells(labels)),
    ]
    for row in last:
        encode = [f"{at[row.codec, size].encode_ms_per_mb:.3f}" for size in sizes]
        decode = [f"{at[row.codec, size].decode_ms_per_mb:.3f}" for size in sizes]
        lines.append(
            f"{row.codec:<{width}} {row.bytes_per_value:>9.3f}  {_cells(encode)}  {_cells(decode)}"
        )
    links = [f"{gbits:g}" for gbits in LINKS]
    title = f"ms to sum up an MB over {last[0].hosts} hosts, by Gbit/s of the link"
    lines += ["", f"{'':<{width}}  {title}", f"{'codec':<{width}}  {_cells(links, 9)}"]
    for row in last:
        times = _cells([f"{row.sum_ms[link]:.2f}" for link in links], 9)
        lines.append(f"{row.codec:<{width}}  {times}  {_verdict(row)}".rstrip())
    return "\n".join(lines)


def _verdict(row: CodecRow) -> str:
    if row.codec == "none":
        return ""
    if row.pays_below_gbits == 0:
        return "pays at no speed"
    return f"pays below {row.pays_below_gbits:.2g} Gbit/s"


def _cells(texts: Sequence[str], width: int = 8) -> str:
    return " ".join(f"{text:>{width}}" for text in texts)


def _over(text: str, labels: Sequence[str]) -> str:
    return f"{text:>{len(_cells(labels))}}"


class Contender:
    """One way to sum up a tensor over the ranks, in place."""

    def __init__(self, name: str, size_bytes: int, call: Callable[[torch.Tensor], Any]) -> None:
        self.name = name
        self._call = call
        self._own = random_matrix(size_bytes, md.rank())
        self.tensor = torch.empty_like(self._own)
        self.saved_bytes = 0.0  # That this rank has sent less, in the last sum.

    def run(self, watch: Stopwatch) -> None:
        """One sum, of the same values as ever. Collective."""
        self.tensor.copy_(self._own)
        before = _saved_by_codecs()
        md.barrier()

        def call() -> torch.Tensor:
            self._call(self.tensor)
            return self.tensor

        watch.time(call)
        self.saved_bytes = _saved_by_codecs() - before
        if self.name in CASTS:
            self.saved_bytes = self.tensor.numel() * 4 * (md.size() - 1) / md.size()
        md.barrier()  # Else the first to be done takes the cores from those that are timed.

    def check(self, wanted: torch.Tensor) -> float:
        """The error as a share of the sum. Collective. Raises WrongResult."""
        if is_falsified(self.name):
            self.tensor[0, 0] += 1
        bits = self.tensor.view(torch.int32).to(torch.int64).sum().reshape(1)
        least, most = (md.allreduce(bits, op=op, name="bench.bits") for op in (md.Min, md.Max))
        if not torch.equal(least, most):
            raise WrongResult(f"{self.name}: the ranks have different sums")
        along = float((self.tensor.double() * wanted.double()).sum())
        if not along > 0:
            raise WrongResult(f"{self.name}: the sum has nothing of the tensors that were summed")
        return float((self.tensor - wanted).norm() / wanted.norm())


def _saved_by_codecs() -> float:
    counted = md.stats()
    return float(counted["codec_raw_bytes"] - counted["codec_wire_bytes"])


def contenders(size_bytes: int) -> list[Contender]:
    """Allreduces of values as they are and cast, and each codec."""
    casts = [Contender(name, size_bytes, _allreduce(name)) for name in ("none", *CASTS)]
    return casts + [
        Contender(codec.name, size_bytes, _encoded_sum(codec)) for codec in every_codec()
    ]


def _allreduce(name: str) -> Callable[[torch.Tensor], Any]:
    compression = getattr(md.Compression, name)
    return lambda tensor: md.allreduce_(
        tensor, op=md.Sum, name=f"bench.{name}", compression=compression
    )


def _encoded_sum(codec: Codec) -> Callable[[torch.Tensor], Any]:
    encoded = EncodedSum(codec, md.global_process_set)
    return lambda tensor: encoded.start([tensor], f"bench.{codec.name}", codec.name)()


@dataclass(frozen=True)
class Sums:
    """What was measured with one contender.

    Attributes:
        row: times of a sum.
        error: of the first one, as a share of the sum.
        saved_bytes: that a rank has sent less in one sum than without a codec.
    """

    row: Row
    error: float
    saved_bytes: float

    def pays_below(self, plain: Sums) -> float | None:
        """The speed of a link in Gbit/s at which both take the same time; None if it wins anyway.

        Both were measured where a link takes no time: in one host.
        """
        longer_us = self.row.min_us - plain.row.min_us
        return self.saved_bytes * 8e-3 / longer_us if longer_us > 0 else None


def measure_sums(plan: CodecPlan) -> list[Sums]:
    """Without a codec first. Collective over all ranks.

    Raises:
        WrongResult: the ranks have different sums, or sums of something else.
    """
    every = contenders(plan.size)
    wanted = sum(random_matrix(plan.size, rank) for rank in range(md.size()))
    assert isinstance(wanted, torch.Tensor)
    found: dict[str, Measured] = {one.name: Measured() for one in every}
    errors: dict[str, float] = {}
    for turn in range(plan.rounds + 1):
        for one in every:
            watch = Stopwatch(warm_ups=1 if turn == 0 else 0)
            one.run(watch)
            # Later ones also bring what was held back before.
            errors.setdefault(one.name, one.check(wanted))
            if turn > 0:
                found[one.name].add(share(watch.measured))
    size = wanted.numel() * 4
    return [
        Sums(
            make_row(Subject("encoded-sum", one.name, "float32", md.size(), size), found[one.name]),
            errors[one.name],
            one.saved_bytes,
        )
        for one in every
    ]


def format_sums(sums: Sequence[Sums], one_host: bool) -> str:
    """The times, errors, and in one host the speeds of links below which codecs pay."""
    plain = sums[0]
    errors = ", ".join(f"{one.row.impl} {one.error:.2g}" for one in sums)
    lines = [format_table([one.row for one in sums]), "", f"error as a share of the sum: {errors}"]
    if one_host:
        speeds = [(one.row.impl, one.pays_below(plain)) for one in sums[1:]]
        told = ", ".join(
            f"{name} at any speed" if speed is None else f"{name} below {speed:.2g} Gbit/s"
            for name, speed in speeds
        )
        lines.append(f"over a link these sums pay: {told}")
    return "\n".join(lines)


def run_codecs(plan: CodecPlan, path: Path | None) -> None:
    """Measures on all ranks; rank 0 prints, and writes the JSON file if there is a path."""
    costs = measure_costs(plan) if md.rank() == 0 else []
    if md.rank() == 0:
        print(format_costs(costs), flush=True)
    sums = measure_sums(plan) if md.size() > 1 else []
    if sums and md.rank() == 0:
        print("\n" + format_sums(sums, md.local_size() == md.size()), flush=True)
    if path is not None and md.rank() == 0:
        told = [asdict(one.row) | {"error": one.error} for one in sums]
        content = {"costs": [asdict(row) for row in costs], "sums": told}
        path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
