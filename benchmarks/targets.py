"""Targets: the figures to reach, one entry per comparison. The only place they are in.

A row is a subject: on two cores (A1, A2, …), of the parameter server (S1, S2, …), or on one GPU
(G2, …: GPU_TARGETS). Its entries are met or missed one by one. "Open MPI" is what mpirun gives over
its shared memory, "Gloo" is libgloo's ring over TCP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mydist.bench.results import format_size

from .results import Results

# Suites of measurements; see suites.py.
CORE2, CORE4 = "core-2", "core-4"
TCP_GLOO, TCP_MPI = "tcp-gloo", "tcp-mpi"
HIERARCHY, HIERARCHY_BYTES = "hierarchy", "hierarchy-bytes"
STEP_RESNET, STEP_GPT = "step-resnet", "step-gpt"
GRADIENTS, LATENCY, STEADY, RECORDING = "gradients", "latency", "steady", "recording"
GPU_STAGING, GPU_OVERHEAD = "gpu-staging", "gpu-overhead"
GPU_BUCKET, GPU_BUCKET2 = "gpu-bucket", "gpu-bucket-2"
GPU_SLOTS, GPU_SLOTS2 = "gpu-slots", "gpu-slots-2"

SERVERS, SERVERS_TCP = "servers", "servers-tcp"
SERVER_ROWS, SERVER_RULES = "server-rows", "server-rules"
STRAGGLERS = "stragglers"
SHARDED = "sharded"

K, M = 1 << 10, 1 << 20
RESNET50_ELEMENTS = 25_557_032
# The collectives of the core, called directly, in two kinds of memory; and through the engine.
ARENA, PRIVATE, ENGINE = "mydist-arena", "mydist-private", "mydist-engine"
_AGAINST = {
    "": "",
    "openmpi": " against Open MPI",
    "gloo": " against Gloo",
    "ddp-gloo": " against DDP over Gloo",
    "plain-pass": ", of a plain a[i] *= c pass",
    "bound": ", of the widest a[i] *= c pass",
}


@dataclass(frozen=True)
class Target:
    """What is compared with what. `relation` is "<=" or ">=" or "=="."""

    row: str
    what: str
    relation: str
    target: float
    unit: str
    suite: str
    measured: Callable[[Results], float | None]
    missing: str = "a contender was missing"  # Why the suite may not have measured it.
    # Names of the two figures that the true one lies between with a probability of 95 %.
    ends: tuple[str, str] | None = None

    def is_met(self, value: float) -> bool:
        """Whether the figure is as good as it should be."""
        if self.relation == "<=":
            return value <= self.target
        return value >= self.target if self.relation == ">=" else value == self.target

    def interval(self, results: Results) -> tuple[float, float] | None:
        """What the true figure may be, if the suite tells."""
        low, high = (results.figure(self.suite, end) for end in self.ends or ("", ""))
        return None if low is None or high is None else (low, high)


def _row(
    *place: str, size: int | None, goal: float, unit: str, peer: str = "", what: str = ""
) -> Target:
    """Of an implementation at a size; `place` is row, suite and implementation.

    By unit: the median time in µs at most, the speed in GB/s at least, or how many times the
    peer's median time is ours at least, in × or in %.
    """
    row, suite, impl = place

    def measured(results: Results) -> float | None:
        ours = results.row(suite, impl, size)
        theirs = results.row(suite, peer, size) if peer else ours
        if ours is None or theirs is None:
            return None
        ratio = theirs.p50_us / ours.p50_us
        by_unit = {"µs": ours.p50_us, "GB/s": ours.algbw_gbs, "×": ratio, "%": 100 * ratio}
        return by_unit[unit]

    text = what or f"{format_size(size or 0)}B {impl.removeprefix('mydist-')}"
    relation = "<=" if unit == "µs" else ">="
    return Target(row, text + _AGAINST[peer], relation, goal, unit, suite, measured)


def _figure(
    row: str, suite: str, name: str, what: str, goal: str, missing: str = "", has_ends: bool = False
) -> Target:
    """A single figure; `goal` is relation, target and unit, if any."""
    relation, target, unit = f"{goal} ".split(" ")[:3]
    stem = name.removesuffix("_percent")
    return Target(
        *(row, what, relation),
        float(target),
        *(unit, suite),
        lambda results: results.figure(suite, name),
        missing or f"the job gave no {name}",
        (f"{stem}_low_percent", f"{stem}_high_percent") if has_ends else None,
    )


def _core() -> Iterable[Target]:
    for impl in (ARENA, ENGINE):
        place = ("A1", CORE2, impl)
        for size in (8, 64):
            yield _row(*place, size=size, goal=0.40, unit="µs")
            yield _row(*place, size=size, goal=1.4, unit="×", peer="openmpi")
            yield _row(*place, size=size, goal=150, unit="×", peer="gloo")
        place = ("A2", CORE2, impl)
        for size, most_us, least in ((1 * K, 0.6, 2.0), (8 * K, 1.0, 5.0), (64 * K, 3.5, 4.5)):
            yield _row(*place, size=size, goal=most_us, unit="µs")
            yield _row(*place, size=size, goal=least, unit="×", peer="openmpi")
    place = ("A3", CORE2, ARENA)
    for size in (1 * M, 4 * M, 16 * M):
        yield _row(*place, size=size, goal=26, unit="GB/s")
        yield _row(*place, size=size, goal=2.8, unit="×", peer="openmpi")
        yield _row(*place, size=size, goal=9, unit="×", peer="gloo")
        if size >= 4 * M:
            yield _row(*place, size=size, goal=90, unit="%", peer="plain-pass")
            yield _row(*place, size=size, goal=90, unit="%", peer="bound")
    place = ("A4", CORE2, ARENA)
    yield _row(*place, size=64 * M, goal=20, unit="GB/s")
    yield _row(*place, size=64 * M, goal=6, unit="×", peer="openmpi")
    yield _row(*place, size=64 * M, goal=12, unit="×", peer="gloo")
    place = ("A5", CORE2, PRIVATE)
    for size, least_gbs, least in ((4 * M, 13, 1.4), (16 * M, 13, 1.4), (64 * M, 9.5, 3.0)):
        yield _row(*place, size=size, goal=least_gbs, unit="GB/s")
        yield _row(*place, size=size, goal=least, unit="×", peer="openmpi")
    for size, least in ((8, 2.5), (8 * K, 6.0), (4 * M, 4.0), (64 * M, 6.0)):
        yield _row("A6", CORE4, ARENA, size=size, goal=least, unit="×", peer="openmpi")


def _torch_api() -> Iterable[Target]:
    what, kept = "161 gradients, comm time against DDP over Gloo", "set_to_none=False"
    yield _figure("A7", GRADIENTS, "ratio", what, ">= 6 ×")
    yield _figure("A7", GRADIENTS, "kept_ratio", f"as above, {kept}", ">= 6 ×")
    yield _figure("A7", GRADIENTS, "pack_bytes", "bytes packed per step", "== 0 B")
    # One copy-in at most: those that backward has made itself.
    copied, most = "bytes copied into slots per step", f"<= {4 * RESNET50_ELEMENTS} B"
    yield _figure("A7", GRADIENTS, "copied_bytes", copied, most)
    yield _figure("A7", GRADIENTS, "kept_copied_bytes", f"{copied}, {kept}", "== 0 B")
    yield _figure("A8", LATENCY, "caller_us", "4 B cached, caller waiting", "<= 10 µs")
    yield _figure("A8", LATENCY, "thread_us", "4 B cached, engine's thread", "<= 90 µs")
    yield _figure("A9", STEADY, "messages_per_step", "control messages per step", "== 0")
    yield _figure("A9", STEADY, "idle_wakeups", "idle wake-ups of the engine per second", "== 0")


def _between_hosts() -> Iterable[Target]:
    for suite, peer, name in ((TCP_GLOO, "gloo", "Gloo"), (TCP_MPI, "openmpi", "Open MPI")):
        for size in (8, 64 * K, 4 * M, 64 * M):
            what = f"{format_size(size)}B over {name}'s TCP"
            yield _row("A10", suite, "mydist", size=size, goal=1, unit="×", peer=peer, what=what)
    place = ("A11", HIERARCHY, "mydist")
    for size in (4 * M, 64 * M):
        what = f"{format_size(size)}B, 2 hosts × 2 ranks"
        yield _row(*place, size=size, goal=2.0, unit="×", peer="gloo", what=what)
    what = "bytes a host sends, beyond 2n(N-1)/N"
    yield _figure("A11", HIERARCHY_BYTES, "excess_bytes", what, "== 0 B")


def _training() -> Iterable[Target]:
    for suite, model in ((STEP_RESNET, "small ResNet"), (STEP_GPT, "small GPT")):
        what, peer = f"step of a {model}", "ddp-gloo"
        yield _row("A13", suite, "mydist", size=None, goal=1.15, unit="×", peer=peer, what=what)
    for name, what in (("timeline", "timeline on"), ("counters", "mydist.stats() in every step")):
        place = ("A14", RECORDING, f"{name}_percent", f"{what}, slower by")
        yield _figure(*place, "<= 1 %", has_ends=True)


def _parameter_server() -> Iterable[Target]:
    """Two workers and a server; the peer is torch.distributed.rpc over TensorPipe."""
    shared = (SERVERS, "shared memory")
    over_tcp = (SERVERS_TCP, "TCP")
    for row, (suite, way), text, goal in (
        ("S1", shared, "64M", "<= 35000 µs"),
        ("S2", over_tcp, "64M", "<= 90000 µs"),
        ("S3", shared, "1M", "<= 500 µs"),
        ("S3", shared, "64K", "<= 100 µs"),
        ("S4", shared, "4", "<= 40 µs"),
        ("S4", over_tcp, "4", "<= 80 µs"),
    ):
        what = f"push_pull of {text}B over {way}"
        yield _figure(row, suite, f"push_pull_{text}_us", what, goal)
        if text == "64M":
            yield _figure(row, suite, f"ratio_{text}", f"{what}, against torch RPC", ">= 5 ×")
    for name, rule, goal in (
        ("sgd", "SGD", "<= 7000 µs"),
        ("adam", "Adam", "<= 15000 µs"),
        ("dc_asgd", "DCASGD, adaptive,", "<= 20000 µs"),
    ):
        what = f"{rule} of 64 MiB on one core of a server"
        yield _figure("S5", SERVER_RULES, f"rule_{name}_us", what, goal)
    what = "4096 rows × 64 of 10^7 pulled and pushed, rows per second and core"
    yield _figure("S6", SERVER_ROWS, "rows_per_second_and_core", what, ">= 1000000")
    what = "SSP(3) with stragglers, of Sync's time to a loss"
    yield _figure("S7", STRAGGLERS, "share", what, "<= 0.65")


def _sharded() -> Iterable[Target]:
    for peer, goal in (("fused", ">= 1 ×"), ("foreach", ">= 4 ×")):
        what = f"AdamW of 64 M parameters on one core, against torch's {peer}"
        yield _figure("Z1", SHARDED, f"{peer}_ratio", what, goal)
    what = "step of stage 2 with 100 M parameters, of DistributedOptimizer's"
    yield _figure("Z2", SHARDED, "ratio_stage2", what, "<= 0.85")
    what += ", with share_parameters=True"
    yield _figure("Z2", SHARDED, "ratio_stage2_shared", what, "<= 0.85")


TARGETS: tuple[Target, ...] = (
    *_core(),
    *_torch_api(),
    *_between_hosts(),
    *_training(),
    *_parameter_server(),
    *_sharded(),
)


def _one_gpu() -> Iterable[Target]:
    yield from _on_both(
        "G2",
        (GPU_SLOTS, GPU_SLOTS2),
        ("pack_bytes", "bytes packed per step", "== 0 B"),
        ("copied_bytes", "bytes copied into slots per step", "== 0 B"),
        ("extra_launches", "extra launches per bucket", "== 0"),
    )
    what = "staged allreduce, of its slowest stage's rate"
    yield _figure("G4", GPU_STAGING, "percent", what, ">= 70 %")
    yield _figure("G4", GPU_STAGING, "chunks_in_flight", "chunks in flight", ">= 4")
    for model, name in (("resnet50", "ResNet-50"), ("gpt", "small GPT")):
        what = f"step of a {name} on one rank, slower by"
        yield _figure("G5", GPU_OVERHEAD, f"{model}_percent", what, "<= 1 %", has_ends=True)
    yield from _on_both(
        "G6",
        (GPU_BUCKET, GPU_BUCKET2),
        ("host_us", "host time per bucket", "<= 10 µs"),
        ("launches", "launches per bucket", "<= 3"),
        ("waits", "waits of the host per bucket", "== 0"),
    )


def _on_both(row: str, suites: tuple[str, str], *figures: tuple[str, str, str]) -> Iterable[Target]:
    """Figures of one rank, and of two ranks that share the GPU: name, what, goal."""
    not_shared = "two ranks did not come to share the GPU over NCCL"
    for suite, ranks, missing in zip(suites, ("1 rank", "2 ranks"), ("", not_shared), strict=True):
        for name, what, goal in figures:
            yield _figure(row, suite, name, f"{what}, {ranks}", goal, missing)


GPU_TARGETS: tuple[Target, ...] = tuple(_one_gpu())
