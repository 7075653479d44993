"""explain(): what mydist chose for this job, and why."""

from __future__ import annotations

from dataclasses import dataclass

from .. import _C
from ..ps import job_servers
from .encoding.automatic import described
from .encoding.path import live_paths
from .gradient_path import live_reducers, unused_codecs
from .sharded.slices import live_slices
from .strategies.run import live_runs

__all__ = ["explain"]


@dataclass(frozen=True)
class Fact:
    """Something that was chosen or measured, and why; `reason` may be empty."""

    choice: str
    reason: str


@dataclass(frozen=True)
class Explanation:
    """What was chosen, by topic; `str()` of it is a text of one line per topic."""

    facts: dict[str, Fact]

    def __str__(self) -> str:
        width = max(map(len, self.facts))
        return "\n".join(
            f"{topic:<{width}}  {fact.choice}" + (f" ({fact.reason})" if fact.reason else "")
            for topic, fact in self.facts.items()
        )


def explain() -> Explanation:
    """What mydist chose for this job on this rank, and why: `print(mydist.explain())`.

    Tells the backend, the data path, what was measured at the start, for every DistributedOptimizer
    that has taken a step its buckets, or its strategy, and for every ShardedOptimizer its slice.
    Topics and texts may change between versions.

    Raises:
        ValueError: before init().
    """
    facts = {topic: Fact(choice, reason) for topic, choice, reason in _C.explain()}
    # In the order in which they were made is not known; by their first parameter it is stable.
    laid_out = sorted((r for r in live_reducers if r.buckets()), key=lambda r: r.buckets())
    for number, reducer in enumerate(laid_out):
        topic = "buckets" if number == 0 else f"buckets {number + 1}"
        facts[topic] = _buckets(reducer)
    encoded = sorted(path.describe() for path in live_paths if path.has_begun)
    unused = sorted(
        (f"{codecs} is not used", "all ranks are on one host; force=True encodes there, too")
        for codecs in unused_codecs.values()
    )
    for number, (choice, reason) in enumerate(sorted(described()) + encoded + unused):
        topic = "compression" if number == 0 else f"compression {number + 1}"
        facts[topic] = Fact(choice, reason)
    strategies = sorted((run.choice(), run.reason()) for run in live_runs)
    for number, (choice, reason) in enumerate(strategies):
        topic = "communication" if number == 0 else f"communication {number + 1}"
        facts[topic] = Fact(choice, reason)
    sharded = sorted(slices.describe() for slices in live_slices)
    for number, (choice, reason) in enumerate(sharded):
        topic = "sharding" if number == 0 else f"sharding {number + 1}"
        facts[topic] = Fact(choice, reason)
    facts.update(_servers())
    return Explanation(facts)


def _servers() -> dict[str, Fact]:
    """The parameter server's, where a table exists."""
    servers = job_servers.find()
    if servers is None:
        return {}
    places = "; ".join(f"{server} {way}" for server, way in servers.client.connections())
    facts = {"servers": Fact(str(len(servers.client.connections())), places)}
    for table in sorted(servers.open_tables, key=lambda table: table.name):
        facts[f"table {table.name}"] = Fact(table.choice(), table.places())
    return facts


def _buckets(reducer: _C.GradientReducer) -> Fact:
    names = reducer.buckets()
    memory = reducer.slot_bytes()
    kept = f"{_mebibytes(memory)} reserved" if memory else "gradients stay where autograd puts them"
    count = "1 bucket" if len(names) == 1 else f"{len(names)} buckets"
    reasons: list[str] = []
    for added, first, others, reason in reducer.layouts():
        which = f"for {added} added later, " if reasons else ""
        sizes = f"the first has up to {_mebibytes(first)}, others up to {_mebibytes(others)}"
        reasons.append(f"{which}{sizes}: {reason}")
    return Fact(f"{sum(map(len, names))} gradients in {count}; {kept}", "; ".join(reasons))


def _mebibytes(count: int) -> str:
    return f"{count / (1 << 20):.4g} MiB"
