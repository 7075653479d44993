"""The checks that run inside a job: a function on every rank, one test item each.

A check is written from the point of view of one rank and raises when something is wrong. All ranks
run the same checks in the same order.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

# The suites; a job runs all checks of the modules of its suite.
SUITES: dict[str, tuple[str, ...]] = {
    "main": (
        "allreduce",
        "integer_averages",
        "gathering",
        "moving",
        "autograd",
        "batch_norm",
        "sparse",
        "handles",
        "waiting",
        "hygiene",
        "mismatch",
        "objects_state",
        "training",
        "conveniences",
        "horovod",
        "horovod_rows",
    ),
    "optimizer": (
        "optimizer_training",
        "optimizer_modes",
        "optimizer_errors",
        "optimizer_classes",
        "optimizer_scaling",
        "optimizer_sparse",
        "optimizer_adasum",
        "optimizer_sets",
        "optimizer_graph",
        "optimizer_state",
        "optimizer_views",
        "sharded",
        "sharded_modes",
        "sharded_models",
        "sharded_mistakes",
        "sharded_parameters",
        "sharded_checkpoints",
        "sharded_dcp",
        "sharded_precision",
        "sharded_sharing",
        "sharded_offload",
        "lifetimes",
        "forking",
    ),
    "state": ("consistency", "checkpoints", "defaults"),
    "strategies": (
        "strategies",
        "strategy_modes",
        "strategy_scaling",
        "strategy_state",
        "strategy_figures",
        "strategy_admm",
        "codecs",
        "codec_steps",
        "onebit_adam",
        "sparse_codecs",
    ),
    # With two servers; once over shared memory, once over TCP.
    "servers": ("parameter_server", "served_strategies", "mixtures"),
    "servers_over_tcp": ("parameter_server", "served_strategies", "mixtures"),
    "sets": ("process_sets", "rooted", "point_to_point", "joining"),
    # What moves data, and no more.
    "collectives": (
        "allreduce",
        "integer_averages",
        "gathering",
        "moving",
        "mismatch",
        "process_sets",
        "rooted",
        "point_to_point",
        "joining",
    ),
    # The same and training, once more through the memory that ranks of one host share.
    "shared": (
        "allreduce",
        "integer_averages",
        "gathering",
        "moving",
        "mismatch",
        "training",
        "optimizer_training",
        "optimizer_modes",
        "optimizer_views",
        "process_sets",
        "rooted",
        "point_to_point",
        "joining",
    ),
    # The same with two ranks on each of several hosts, which reduce first.
    "hosts": (
        "allreduce",
        "integer_averages",
        "gathering",
        "moving",
        "mismatch",
        "training",
        "process_sets",
        "rooted",
        "point_to_point",
        "joining",
        "strategies",
        "codecs",
        "codec_steps",
        "onebit_adam",
        "sparse_codecs",
    ),
    # Several buckets, whatever is measured.
    "bucketed": ("optimizer_views",),
    # What a schedule without negotiation must not change.
    "frozen": (
        "freezing",
        "deviating",
        "strategy_freezing",
        "allreduce",
        "integer_averages",
        "gathering",
        "moving",
        "handles",
        "waiting",
        "mismatch",
        "training",
        "optimizer_training",
        "optimizer_modes",
        "process_sets",
        "rooted",
        "point_to_point",
        "joining",
    ),
    # With the settings as they come: what costs nothing once steps repeat themselves.
    "steady": ("freezing", "waiting"),
    "steady_hosts": ("freezing", "waiting"),
    # A rank that is late; with fewer cores than ranks, and with fewer than training threads; with
    # two ranks on each host, and with every rank on a host of its own.
    "late": ("lateness",),
    "crowded": ("lateness",),
    "late_hosts": ("lateness",),
    "late_lone": ("lateness",),
    # One rank on each of several hosts: nobody to share memory with.
    "frozen_lone": (
        "freezing",
        "deviating",
        "allreduce",
        "integer_averages",
        "mismatch",
        "process_sets",
        "joining",
    ),
    # The same on several hosts, in part.
    "frozen_hosts": (
        "freezing",
        "deviating",
        "strategy_freezing",
        "allreduce",
        "integer_averages",
        "gathering",
        "mismatch",
        "training",
        "process_sets",
        "rooted",
        "point_to_point",
        "joining",
    ),
    # What depends on how tensors are packed, once more with fusion switched off.
    "unfused": (
        "allreduce",
        "integer_averages",
        "gathering",
        "moving",
        "handles",
        "process_sets",
        "joining",
    ),
}


# All that a job with the settings as they come can run, after one start.
_PARTS = ("main", "optimizer", "sets", "state", "strategies")
SUITES["whole"] = tuple(module for part in _PARTS for module in SUITES[part])

# How many cases of a check a job runs that does not run all of them.
FEW = 8


class NotHereError(Exception):
    """Raised by a check, with the reason, where what it is about cannot be seen: on all ranks
    alike, so that its item is skipped and says why.
    """


@dataclass(frozen=True)
class Check:
    """One check: its name, the function, and the smallest job it makes sense in."""

    name: str
    function: Callable[[], None]
    min_size: int
    stem: str = ""  # The name without its case.


_checks: dict[str, list[Check]] = {}


def check(
    *, min_size: int = 1, cases: Iterable[tuple[Any, ...]] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Registers a function as a check, or as one check per tuple of arguments in `cases`."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        registered = _checks.setdefault(function.__module__, [])
        stem = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
        if cases is None:
            registered.append(Check(stem, function, min_size, stem))
        for case in cases or ():
            label = "-".join(str(value).replace("torch.", "") for value in case)
            registered.append(Check(f"{stem}[{label}]", _bind(function, case), min_size, stem))
        return function

    return register


def _bind(function: Callable[..., None], case: tuple[Any, ...]) -> Callable[[], None]:
    return lambda: function(*case)


def checks_of(suite: str, every_case: bool = True) -> list[Check]:
    """The checks of a suite, in the order in which every rank runs them.

    Args:
        every_case: run all cases of each check; else FEW of them, spread over the list. Suites
            begin at different cases, so that together they run more of them.
    """
    found: list[Check] = []
    for name in SUITES[suite]:
        module = importlib.import_module(f"multiproc.checks.{name}")
        found += _checks[module.__name__]
    if every_case:
        return found
    chosen: list[Check] = []
    for _, group in itertools.groupby(found, key=lambda one: one.stem):
        chosen += _few(list(group), sum(map(ord, suite)))
    return chosen


def _few(cases: list[Check], first: int) -> list[Check]:
    """At most FEW of the cases, evenly spread, beginning with number `first` (modulo the step)."""
    if len(cases) <= FEW:
        return cases
    step = len(cases) / FEW
    return [cases[int(step * i + first % step) % len(cases)] for i in range(FEW)]
