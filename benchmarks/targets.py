"""Targets: the figures to reach, one entry per comparison. The only place they are in.

A row is a subject, on two cores (A1, A2, …) or on one GPU (G2, …: GPU_TARGETS); its entries are met
or missed one by one. "Open MPI" is what mpirun gives over its shared memory, "Gloo" is libgloo's
ring over TCP.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

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

K, M = 1 << 10, 1 << 20
RESNET50_ELEMENTS = 25_557_032
# The collectives of the core, called directly, in two kinds of memory; and through the engine.
ARENA, PRIVATE, ENGINE = "mydist-arena", "mydist-private", "mydist-engine"
_PEER_NAMES = {"openmpi": "Open MPI", "gloo": "Gloo", "ddp-gloo": "DDP over Gloo"}


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
    # What the true figure lies in with a probability of 95 %, if the suite tells.
    interval: Callable[[Results], tuple[float, float] | None] = lambda _: None

    def is_met(self, value: float) -> bool:
        """Whether the figure is as good as it should be."""
        if self.relation == "<=":
            return value <= self.target
        return value >= self.target if self.relation == ">=" else value == self.target


def _time(row: str, suite: str, impl: str, size: int, most_us: float) -> Target:
    def measured(results: Results) -> float | None:
        found = results.row(suite, impl, size)
        return found.p50_us if found else None

    what = f"{format_size(size)}B {impl.removeprefix('mydist-')}"
    return Target(row, what, "<=", most_us, "µs", suite, measured)


def _speed(row: str, suite: str, impl: str, size: int, least_gbs: float) -> Target:
    def measured(results: Results) -> float | None:
        found = results.row(suite, impl, size)
        return found.algbw_gbs if found else None

    what = f"{format_size(size)}B {impl.removeprefix('mydist-')}"
    return Target(row, what, ">=", least_gbs, "GB/s", suite, measured)


_PASSES = {"plain-pass": "a plain a[i] *= c pass", "bound": "the widest a[i] *= c pass"}


def _efficiency(row: str, impl: str, size: int, which: str, least_percent: float) -> Target:
    """T_rw ÷ our median time."""
    suite = CORE2

    def measured(results: Results) -> float | None:
        ours, bound = results.row(suite, impl, size), results.row(suite, which, size)
        return 100 * bound.p50_us / ours.p50_us if ours and bound else None

    what = f"{format_size(size)}B {impl.removeprefix('mydist-')}, of {_PASSES[which]}"
    return Target(row, what, ">=", least_percent, "%", suite, measured)


def _faster(
    row: str, suite: str, impl: str, peer: str, size: int | None, least: float, what: str = ""
) -> Target:
    """How many times the peer's median time is ours."""

    def measured(results: Results) -> float | None:
        ours, theirs = results.row(suite, impl, size), results.row(suite, peer, size)
        return theirs.p50_us / ours.p50_us if ours and theirs else None

    subject = what or f"{format_size(size or 0)}B {impl.removeprefix('mydist-')}"
    text = f"{subject} against {_PEER_NAMES[peer]}"
    return Target(row, text, ">=", least, "×", suite, measured)


def _figure(
    row: str, suite: str, name: str, what: str, relation: str, target: float, unit: str
) -> Target:
    facts = (row, what, relation, target, unit, suite)
    return Target(*facts, lambda r: r.figure(suite, name), f"mydist.stats() has no {name}")


def _interval(suite: str, low: str, high: str) -> Callable[[Results], tuple[float, float] | None]:
    def interval(results: Results) -> tuple[float, float] | None:
        ends = results.figure(suite, low), results.figure(suite, high)
        return None if ends[0] is None or ends[1] is None else (ends[0], ends[1])

    return interval


def _core() -> Iterable[Target]:
    for impl in (ARENA, ENGINE):
        for size in (8, 64):
            yield _time("A1", CORE2, impl, size, 0.40)
            yield _faster("A1", CORE2, impl, "openmpi", size, 1.4)
            yield _faster("A1", CORE2, impl, "gloo", size, 150)
        for size, most_us, least in ((1 * K, 0.6, 2.0), (8 * K, 1.0, 5.0), (64 * K, 3.5, 4.5)):
            yield _time("A2", CORE2, impl, size, most_us)
            yield _faster("A2", CORE2, impl, "openmpi", size, least)
    for size in (1 * M, 4 * M, 16 * M):
        yield _speed("A3", CORE2, ARENA, size, 26)
        yield _faster("A3", CORE2, ARENA, "openmpi", size, 2.8)
        yield _faster("A3", CORE2, ARENA, "gloo", size, 9)
        if size >= 4 * M:
            for which in _PASSES:
                yield _efficiency("A3", ARENA, size, which, 90)
    yield _speed("A4", CORE2, ARENA, 64 * M, 20)
    yield _faster("A4", CORE2, ARENA, "openmpi", 64 * M, 6)
    yield _faster("A4", CORE2, ARENA, "gloo", 64 * M, 12)
    for size, least_gbs, least in ((4 * M, 13, 1.4), (16 * M, 13, 1.4), (64 * M, 9.5, 3.0)):
        yield _speed("A5", CORE2, PRIVATE, size, least_gbs)
        yield _faster("A5", CORE2, PRIVATE, "openmpi", size, least)
    for size, least in ((8, 2.5), (8 * K, 6.0), (4 * M, 4.0), (64 * M, 6.0)):
        yield _faster("A6", CORE4, ARENA, "openmpi", size, least)


def _torch_api() -> Iterable[Target]:
    yield _figure(
        *("A7", GRADIENTS, "ratio", "161 gradients, comm time against DDP over Gloo"), ">=", 6, "×"
    )
    kept = "set_to_none=False"
    yield _figure("A7", GRADIENTS, "kept_ratio", f"as above, {kept}", ">=", 6, "×")
    yield _figure("A7", GRADIENTS, "pack_bytes", "bytes packed per step", "==", 0, "B")
    # One copy-in at most: those that backward has made itself.
    copied = "bytes copied into slots per step"
    yield _figure("A7", GRADIENTS, "copied_bytes", copied, "<=", 4 * RESNET50_ELEMENTS, "B")
    yield _figure("A7", GRADIENTS, "kept_copied_bytes", f"{copied}, {kept}", "==", 0, "B")
    yield _figure("A8", LATENCY, "caller_us", "4 B cached, caller waiting", "<=", 10, "µs")
    yield _figure("A8", LATENCY, "thread_us", "4 B cached, engine's thread", "<=", 90, "µs")
    yield _figure("A9", STEADY, "messages_per_step", "control messages per step", "==", 0, "")
    yield _figure("A9", STEADY, "idle_wakeups", "idle wake-ups per second", "==", 0, "")


def _between_hosts() -> Iterable[Target]:
    for suite, peer in ((TCP_GLOO, "gloo"), (TCP_MPI, "openmpi")):
        for size in (8, 64 * K, 4 * M, 64 * M):
            what = f"{format_size(size)}B over {_PEER_NAMES[peer]}'s TCP"
            yield _faster("A10", suite, "mydist", peer, size, 1.0, what)
    for size in (4 * M, 64 * M):
        what = f"{format_size(size)}B, 2 hosts × 2 ranks"
        yield _faster("A11", HIERARCHY, "mydist", "gloo", size, 2.0, what)
    what = "bytes a host sends, beyond 2n(N-1)/N"
    yield _figure("A11", HIERARCHY_BYTES, "excess_bytes", what, "==", 0, "B")


def _training() -> Iterable[Target]:
    for suite, model in ((STEP_RESNET, "small ResNet"), (STEP_GPT, "small GPT")):
        yield _faster("A13", suite, "mydist", "ddp-gloo", None, 1.15, f"step of a {model}")
    for name, what in (("timeline", "timeline on"), ("counters", "mydist.stats() in every step")):
        slower = _figure("A14", RECORDING, f"{name}_percent", f"{what}, slower by", "<=", 1, "%")
        low, high = (f"{name}_{end}_percent" for end in ("low", "high"))
        yield replace(slower, interval=_interval(RECORDING, low, high))


TARGETS: tuple[Target, ...] = (*_core(), *_torch_api(), *_between_hosts(), *_training())


_NOT_SHARED = "two ranks did not come to share the GPU over NCCL"


def _gradients_in_slots() -> Iterable[Target]:
    for suite, ranks in ((GPU_SLOTS, "1 rank"), (GPU_SLOTS2, "2 ranks")):
        for name, what, unit in (
            ("pack_bytes", "bytes packed per step", "B"),
            ("copied_bytes", "bytes copied into slots per step", "B"),
            ("extra_launches", "extra launches per bucket", ""),
        ):
            per = _figure("G2", suite, name, f"{what}, {ranks}", "==", 0, unit)
            yield per if suite == GPU_SLOTS else replace(per, missing=_NOT_SHARED)


def _one_gpu() -> Iterable[Target]:
    what = "staged allreduce, of its slowest stage's rate"
    yield _figure("G4", GPU_STAGING, "percent", what, ">=", 70, "%")
    yield _figure("G4", GPU_STAGING, "chunks_in_flight", "chunks in flight", ">=", 4, "")
    for model, what in (("resnet50", "ResNet-50"), ("gpt", "small GPT")):
        text = f"step of a {what} on one rank, slower by"
        slower = _figure("G5", GPU_OVERHEAD, f"{model}_percent", text, "<=", 1, "%")
        low, high = (f"{model}_{end}_percent" for end in ("low", "high"))
        yield replace(slower, interval=_interval(GPU_OVERHEAD, low, high))
    for suite, ranks in ((GPU_BUCKET, "1 rank"), (GPU_BUCKET2, "2 ranks")):
        for name, what, relation, target, unit in (
            ("host_us", "host time", "<=", 10, "µs"),
            ("launches", "launches", "<=", 3, ""),
            ("waits", "waits of the host", "==", 0, ""),
        ):
            per = _figure("G6", suite, name, f"{what} per bucket, {ranks}", relation, target, unit)
            yield per if suite == GPU_BUCKET else replace(per, missing=_NOT_SHARED)


GPU_TARGETS: tuple[Target, ...] = (*_gradients_in_slots(), *_one_gpu())
